"""What holds for every plan, over random models, devices and requests."""

from __future__ import annotations

import dataclasses
import itertools
import re

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from darkroom.knowledge import Catalogue, Component, SchemeWeights, Weights, load_catalogue
from darkroom.knowledge.catalogue import Shared
from darkroom.knowledge.family import Denial
from darkroom.rpc.errors import PlanRefusedError
from darkroom.v1 import device_pb2, plan_pb2, planner_service_pb2, worker_pb2
from services.planner.planning import plan
from services.planner.sources import CONVERTED

CATALOGUE = load_catalogue()
SHARED = Shared(**{item.name: getattr(CATALOGUE, item.name) for item in dataclasses.fields(Shared)})
ROLES = {name.removeprefix("COMPONENT_ROLE_").lower(): number for name, number in plan_pb2.ComponentRole.items()}
GIB = 1 << 30
SCHEMES = [number for number in device_pb2.Scheme.values() if number > 1]
TIERS = [
    plan_pb2.OFFLOAD_TIER_NONE,
    plan_pb2.OFFLOAD_TIER_ENCODERS,
    plan_pb2.OFFLOAD_TIER_GROUP,
    plan_pb2.OFFLOAD_TIER_MODEL,
    plan_pb2.OFFLOAD_TIER_SEQUENTIAL,
]
OUT_OF_MEMORY = plan_pb2.FALLBACK_TRIGGER_OUT_OF_MEMORY
many = settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@st.composite
def devices(draw) -> device_pb2.Device:
    device = CATALOGUE.device(draw(st.sampled_from(sorted(CATALOGUE.devices))))
    device.memory.total_bytes = draw(st.integers(2, 200)) * GIB
    device.memory.foreign_bytes = draw(st.integers(0, device.memory.total_bytes))
    device.memory.host_free_bytes = draw(st.sampled_from([0, 8 * GIB, 64 * GIB, 512 * GIB]))
    if draw(st.booleans()):
        device.is_assumed = False
        for scheme in draw(st.sets(st.sampled_from(SCHEMES))):
            device.probes.add(scheme=scheme, works=draw(st.booleans()))
        device.can_compile = draw(st.booleans())
    return device


@st.composite
def catalogues(draw) -> Catalogue:
    """The shipped families, or one that nobody has made: any number of parts of any size."""
    if draw(st.integers(0, 3)):
        return CATALOGUE
    roles = {"transformer": "denoiser", "vae": "vae"}
    roles |= {f"text_encoder_{place}": "text_encoder" for place in range(draw(st.integers(0, 4)))}
    roles |= {"transformer_2": "denoiser"} if draw(st.booleans()) else {}
    roles |= {"connectors": "connector"} if draw(st.booleans()) else {}
    components = {name: Component(role=ROLES[role], architecture=name) for name, role in roles.items()}
    weights = {name: draw(counts()) for name in roles}
    denials = draw(
        st.lists(st.builds(Denial, st.just(ROLES["denoiser"]), st.tuples(st.sampled_from(SCHEMES)), st.just("x")))
    )
    made = dataclasses.replace(
        CATALOGUE.find("flux.1-dev"),
        name="made-up",
        components=components,
        denials=tuple(denials),
        artifacts=(),
        aliases=(),
    )
    architectures = dict.fromkeys(roles, CATALOGUE.architectures["flux.1"])
    return Catalogue([made], dataclasses.replace(SHARED, architectures=architectures, weights=weights), "made-up")


@st.composite
def counts(draw) -> Weights:
    parameters = draw(st.integers(10**6, 10**11))
    block = draw(st.integers(0, parameters // 2))
    taken = draw(st.integers(0, parameters))
    scheme = SchemeWeights(parameters=taken, num_tensors=1, scale_bytes=taken // 512)
    return Weights(
        parameters=parameters,
        num_tensors=10,
        largest_layer_parameters=draw(st.integers(0, parameters)),
        block_parameters=block * draw(st.integers(1, 2)),
        largest_block_parameters=block,
        schemes={number: scheme for number in SCHEMES if number != device_pb2.SCHEME_GGUF},
    )


@st.composite
def cases(draw) -> tuple[planner_service_pb2.PlanRequest, Catalogue]:
    catalogue = draw(catalogues())
    wishes = plan_pb2.PlanPreferences(
        memory_mode=draw(st.sampled_from(plan_pb2.MemoryMode.values())),
        speed_mode=draw(st.sampled_from(plan_pb2.SpeedMode.values())),
        scheme=draw(st.sampled_from([0, 0, 0, *SCHEMES[:-1], 1])),
        text_encoder_scheme=draw(st.sampled_from([0, 0, 0, 0, *SCHEMES[:-1], 1])),
        allows_scheme_fallback=draw(st.booleans()),
        forbids_storage_cast=draw(st.booleans()),
        adapters=[plan_pb2.Adapter(reference="a/b", weight=1)] * draw(st.integers(0, 1)),
    )
    workload = plan_pb2.Workload(
        width=draw(st.sampled_from([0, 256, 1024, 2048])),
        height=draw(st.sampled_from([0, 512, 1024])),
        batch_size=draw(st.integers(0, 4)),
        num_frames=draw(st.sampled_from([0, 1, 33, 121])),
    )
    request = planner_service_pb2.PlanRequest(
        model=draw(st.sampled_from([variant.name for variant in catalogue])),
        device=draw(devices()),
        preferences=wishes,
        workload=workload,
    )
    if draw(st.booleans()):
        request.inspection.CopyFrom(
            worker_pb2.Inspection(is_present=draw(st.booleans()), disk_free_bytes=draw(st.integers(0, 500)) * GIB)
        )
    return request, catalogue


def answer(request: planner_service_pb2.PlanRequest, catalogue: Catalogue) -> planner_service_pb2.PlanResponse | None:
    try:
        return plan(request, catalogue)
    except PlanRefusedError:
        return None


def plans(response: planner_service_pb2.PlanResponse) -> list[plan_pb2.Plan]:
    if not response.HasField("plan"):
        return []
    return [response.plan, *(fallback.plan for fallback in response.plan.fallbacks)]


@many
@given(cases())
def test_every_plan_and_every_fallback_fits_its_own_budget(case) -> None:
    request, catalogue = case
    response = answer(request, catalogue)
    for item in plans(response) if response else []:
        memory = item.memory
        assert memory.required_bytes <= memory.limit_bytes <= memory.budget_bytes
        assert memory.budget_bytes == max(0, memory.total_bytes - memory.foreign_bytes - memory.reserve_bytes)
        assert memory.required_bytes == memory.weight_bytes + memory.activation_bytes + memory.overhead_bytes
        largest = max(stage.weight_bytes + stage.activation_bytes for stage in memory.stages)
        assert largest == memory.weight_bytes + memory.activation_bytes
        assert not memory.host_free_bytes or memory.host_bytes <= memory.host_free_bytes


@many
@given(cases(), st.integers(0, 100))
def test_more_memory_never_gives_a_slower_tier(case, freed) -> None:
    request, catalogue = case
    less = answer(request, catalogue)
    request.device.memory.foreign_bytes = max(0, request.device.memory.foreign_bytes - freed * GIB)
    more = answer(request, catalogue)
    if less and less.HasField("plan"):
        assert more.HasField("plan")
        assert TIERS.index(more.plan.offload) <= TIERS.index(less.plan.offload)


@many
@given(cases())
def test_after_running_out_of_memory_every_fallback_needs_strictly_less(case) -> None:
    request, catalogue = case
    response = answer(request, catalogue)
    if response and response.HasField("plan"):
        chain = [item.plan for item in response.plan.fallbacks if item.trigger == OUT_OF_MEMORY]
        needs = [item.memory.required_bytes for item in (response.plan, *chain)]
        assert all(after < before for before, after in itertools.pairwise(needs))


@many
@given(cases())
def test_denied_schemes_and_pairs_that_break_never_appear(case) -> None:
    request, catalogue = case
    response = answer(request, catalogue)
    denied = {
        (denial.role, scheme)
        for denial in catalogue.find(request.model).denials
        if not denial.is_advice
        for scheme in denial.schemes
    }
    unstreamable = (plan_pb2.OFFLOAD_TIER_GROUP, plan_pb2.OFFLOAD_TIER_SEQUENTIAL)
    for item in plans(response) if response else []:
        pairs = {(part.role, part.scheme) for part in item.components}
        assert not pairs & denied
        encoders = {scheme for role, scheme in pairs if role == plan_pb2.COMPONENT_ROLE_TEXT_ENCODER}
        assert not item.streams_text_encoders or not encoders & CONVERTED
        denoisers = {scheme for role, scheme in pairs if role == plan_pb2.COMPONENT_ROLE_DENOISER}
        assert item.offload not in unstreamable or not denoisers & CONVERTED
        assert item.HasField("compile") or not denoisers & CONVERTED or request.preferences.scheme in denoisers


@many
@given(cases())
def test_a_plan_alone_tells_the_worker_everything(case) -> None:
    request, catalogue = case
    response = answer(request, catalogue)
    for item in plans(response) if response else []:
        assert item.pipeline_class
        assert item.call.guidance_argument
        assert item.catalogue_digest == catalogue.digest
        assert item.idle.denoise.seconds >= 60
        for part in item.components:
            assert part.class_name
            assert part.weight_bytes > 0
            assert (part.scheme == device_pb2.SCHEME_NONE) != part.HasField("recipe")
        if not request.device.is_assumed:
            seen = {probe.scheme for probe in request.device.probes if probe.works} | {device_pb2.SCHEME_NONE}
            assert {part.scheme for part in item.components} <= seen


@many
@given(cases())
def test_the_same_request_gives_the_same_bytes(case) -> None:
    request, catalogue = case
    first, second = answer(request, catalogue), answer(request, catalogue)
    assert (first and first.SerializeToString(deterministic=True)) == (
        second and second.SerializeToString(deterministic=True)
    )


@many
@given(cases())
def test_every_decline_carries_the_numbers(case) -> None:
    request, catalogue = case
    response = answer(request, catalogue)
    if response and response.HasField("no_fit"):
        assert response.no_fit.candidates
        for candidate in response.no_fit.candidates:
            assert candidate.reason.code
            if candidate.HasField("memory"):
                assert re.search(r"\d+(\.\d)? [GM]B", candidate.reason.sentence)


@many
@given(cases())
def test_what_the_device_does_not_tell_stays_unknown(case) -> None:
    request, catalogue = case
    request.device.memory.total_bytes = 0
    request.device.memory.foreign_bytes = 0
    request.ClearField("inspection")
    request.device.memory.host_free_bytes = 0
    response = answer(request, catalogue)
    if response and response.HasField("plan"):
        assert response.plan.reasons[0].code == "MEMORY_UNKNOWN"
        assert response.plan.memory.limit_bytes == 0
