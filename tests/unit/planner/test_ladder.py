"""Which schemes a device is offered, in which order, and why others are not."""

from __future__ import annotations

import pytest

from darkroom.knowledge import load_catalogue
from darkroom.rpc.errors import InvalidRequestError, PlanRefusedError
from darkroom.v1 import device_pb2, plan_pb2, planner_service_pb2
from services.planner.planning import plan
from tests.unit.planner.describing import GIB, cpu, gpu

NONE, FP8, INT8 = device_pb2.SCHEME_NONE, device_pb2.SCHEME_FP8, device_pb2.SCHEME_INT8
NVFP4, MXFP8, STORAGE = device_pb2.SCHEME_NVFP4, device_pb2.SCHEME_MXFP8, device_pb2.SCHEME_FP8_STORAGE
CATALOGUE = load_catalogue()


def answer(model: str, device: device_pb2.Device, **wishes) -> planner_service_pb2.PlanResponse:
    request = planner_service_pb2.PlanRequest(
        model=model, device=device, preferences=plan_pb2.PlanPreferences(**wishes)
    )
    return plan(request, CATALOGUE)


def scheme_of(response: planner_service_pb2.PlanResponse) -> int:
    return next(part.scheme for part in response.plan.components if part.role == plan_pb2.COMPONENT_ROLE_DENOISER)


def codes(response: planner_service_pb2.PlanResponse) -> set[str]:
    return {reason.code for reason in response.plan.reasons}


@pytest.mark.parametrize(
    ("device", "scheme"),
    [
        ("h100", FP8),
        ("h200", FP8),
        ("b200", FP8),
        ("l40s", FP8),
        ("rtx-6000-ada", FP8),
        ("rtx-pro-6000", FP8),
        ("rtx-5090", INT8),
        ("rtx-4090", INT8),
        ("rtx-3090", INT8),
        ("a100-80gb", INT8),
        ("t4", NONE),
        ("v100", NONE),
        ("mi300x", NONE),
        ("m4-max", NONE),
        ("cpu-64gb", NONE),
    ],
)
def test_a_small_model_gets_the_first_scheme_of_its_devices_class(device, scheme) -> None:
    assert scheme_of(answer("lumina-image-2.0", CATALOGUE.device(device))) == scheme


def test_on_hopper_int8_is_a_memory_fallback_behind_dense_bfloat16() -> None:
    # HunyuanVideo denies fp8, so int8 is what the ladder would take next if it were ordered by novelty.
    response = answer("hunyuanvideo-1.5-480p", CATALOGUE.device("h200"))
    assert scheme_of(response) == NONE
    assert response.plan.step.ratio == pytest.approx(0.76)
    smaller = [item.plan for item in response.plan.fallbacks if item.trigger == plan_pb2.FALLBACK_TRIGGER_OUT_OF_MEMORY]
    assert smaller


def test_a_denial_carries_what_was_measured() -> None:
    with pytest.raises(PlanRefusedError, match=r"nvfp4 is denied for qwen-image: .*LPIPS 0\.51"):
        answer("qwen-image", CATALOGUE.device("b200"), scheme=NVFP4)
    response = answer("hunyuanvideo-1.5-480p", CATALOGUE.device("h200"))
    assert any("renders black" in reason.sentence for reason in response.plan.reasons)


def test_nvfp4_is_only_given_when_asked_for() -> None:
    for device in ("b200", "rtx-5090"):
        assert NVFP4 not in CATALOGUE.classes[{"b200": "blackwell-datacenter"}.get(device, "blackwell-consumer")].ladder
        assert scheme_of(answer("flux.1-dev", CATALOGUE.device(device), scheme=NVFP4)) == NVFP4


def test_capability_decides_not_the_name() -> None:
    with pytest.raises(PlanRefusedError, match=r"fp8 needs CUDA compute capability 8\.9; .* has 8\.6"):
        answer("flux.1-dev", gpu("NVIDIA RTX 6000", (8, 6), 48 * GIB), scheme=FP8)


def test_a_present_device_is_offered_only_what_it_was_seen_to_run() -> None:
    card = gpu("NVIDIA H100 80GB HBM3", (9, 0), 80 * GIB, probes={FP8: False, INT8: True})
    card.can_compile = True
    response = answer("flux.1-dev", card)
    assert scheme_of(response) == NONE
    assert {"PROBE_FAILED", "SCHEME_UNPROVEN"} <= codes(response)
    assert not response.plan.is_assumed


def test_a_described_device_says_that_its_probe_is_assumed() -> None:
    response = answer("flux.1-dev", CATALOGUE.device("h100"))
    assert response.plan.is_assumed
    assert any(reason.sentence.startswith("probe: assumed") for reason in response.plan.reasons)


def test_a_failed_compilation_falls_back_to_the_dense_model_uncompiled() -> None:
    planned = answer("flux.1-dev", CATALOGUE.device("h200")).plan
    kernel = [item.plan for item in planned.fallbacks if item.trigger == plan_pb2.FALLBACK_TRIGGER_KERNEL_FAILED]
    assert [(item.HasField("compile"), item.step.ratio) for item in kernel] == [(True, 0.76), (False, 1.0)]


def test_dynamic_quantisation_is_never_left_uncompiled_unasked() -> None:
    card = gpu("NVIDIA H100 80GB HBM3", (9, 0), 80 * GIB, probes={FP8: True, INT8: True})
    assert scheme_of(answer("flux.1-dev", card)) == NONE
    asked = answer("flux.1-dev", card, scheme=FP8).plan
    assert not asked.HasField("compile")
    assert asked.step.ratio == pytest.approx(1.4)  # measured on an H200: 243.6 against 174.5 ms


def test_speed_mode_off_is_the_reference_and_quantises_nothing() -> None:
    response = answer("flux.1-dev", CATALOGUE.device("h200"), speed_mode=plan_pb2.SPEED_MODE_OFF)
    assert scheme_of(response) == NONE
    assert response.plan.speed_mode == plan_pb2.SPEED_MODE_OFF
    assert "SPEED_MODE_OFF" in codes(response)


def test_storage_casts_can_be_forbidden() -> None:
    card = CATALOGUE.device("rtx-3060")
    assert scheme_of(answer("flux.1-dev", card)) == STORAGE
    response = answer("flux.1-dev", card, forbids_storage_cast=True)
    assert STORAGE not in {part.scheme for part in response.plan.components}


def test_a_model_whose_activations_overflow_float16_is_promoted_and_says_so() -> None:
    promoted = answer("z-image-turbo", CATALOGUE.device("t4"))
    assert promoted.plan.compute_type == plan_pb2.COMPUTE_TYPE_FLOAT32
    assert "FLOAT16_PROMOTED" in codes(promoted)
    assert answer("flux.1-dev", CATALOGUE.device("t4")).plan.compute_type == plan_pb2.COMPUTE_TYPE_FLOAT16


def test_adapters_are_baked_into_int8_and_size_the_load_for_the_dense_build() -> None:
    adapters = [plan_pb2.Adapter(reference="owner/adapter", weight=1.0)]
    planned = answer("flux.1-dev", CATALOGUE.device("a100-80gb"), adapters=adapters).plan
    assert planned.adapters.is_baked
    assert not any(part.source.repo_id for part in planned.components if part.name == "transformer")
    load = next(stage for stage in planned.memory.stages if stage.stage == plan_pb2.MEMORY_STAGE_LOAD)
    assert load.weight_bytes == 11_901_408_320 * 2
    with pytest.raises(PlanRefusedError, match="adapters can't be baked into nvfp4"):
        answer("flux.1-dev", CATALOGUE.device("b200"), adapters=adapters, scheme=NVFP4)
    with pytest.raises(InvalidRequestError, match="outside 0 to 2"):
        answer("flux.1-dev", CATALOGUE.device("b200"), adapters=[plan_pb2.Adapter(reference="a", weight=3)])


def test_attention_and_step_caches_are_refused_where_they_can_not_run() -> None:
    h100 = CATALOGUE.device("h100")
    with pytest.raises(PlanRefusedError, match="flash4"):
        answer("flux.1-dev", h100, attention=plan_pb2.ATTENTION_BACKEND_FLASH4)
    wish = plan_pb2.STEP_CACHE_KIND_FIRST_BLOCK
    assert answer("flux.1-dev", h100, step_cache=wish).plan.step_cache.threshold == pytest.approx(0.12)  # quantised
    with pytest.raises(PlanRefusedError, match="too few steps"):
        answer("flux.1-schnell", h100, step_cache=wish)
    with pytest.raises(PlanRefusedError, match="does not support"):
        answer("flux.2-dev", h100, step_cache=wish)


def test_text_encoders_and_vae_are_cast_as_asked_or_refused_with_the_reason() -> None:
    wish = {"text_encoder_scheme": STORAGE, "vae_scheme": STORAGE}
    parts = {part.name: part for part in answer("qwen-image", CATALOGUE.device("h100"), **wish).plan.components}
    assert (parts["text_encoder"].scheme, parts["vae"].scheme) == (STORAGE, STORAGE)
    assert parts["text_encoder"].source.repo_id == "unsloth/Qwen-Image-FP8"
    blocks = answer("qwen-image", CATALOGUE.device("h100"), text_encoder_scheme=INT8).plan.components[0].recipe
    assert ".layers.27." in blocks.exclude_names
    with pytest.raises(PlanRefusedError, match=r"int8 has no recipe for t5-xxl"):
        answer("flux.1-dev", CATALOGUE.device("h100"), text_encoder_scheme=INT8)
    with pytest.raises(PlanRefusedError, match=r"takes no layer|no recipe for wan2\.1-vae"):
        answer("wan2.2-t2v-a14b", CATALOGUE.device("h100"), vae_scheme=STORAGE)  # it stays float32
    with pytest.raises(PlanRefusedError, match="asked for or not"):
        answer("ltx-2", CATALOGUE.device("h100"), text_encoder_scheme=FP8)


def test_the_step_ratio_is_the_familys_own_where_it_was_measured() -> None:
    assert answer("qwen-image", CATALOGUE.device("h200")).plan.step.ratio == pytest.approx(109.8 / 179.1, abs=1e-3)
    assert answer("krea-2-turbo", CATALOGUE.device("h200")).plan.step.ratio == pytest.approx(0.617)
    unknown = answer("flux.1-dev", CATALOGUE.device("a100-80gb")).plan.step
    assert (unknown.ratio, unknown.is_measured) == (0, False)
    assert "nobody measured" in unknown.source


def test_a_scheme_that_would_change_nothing_is_refused() -> None:
    host = cpu(16)
    host.probes.add(scheme=MXFP8, works=True)
    with pytest.raises(PlanRefusedError, match="mxfp8 takes no layer of emoji"):
        answer("emoji", host, scheme=MXFP8)


def test_a_scheme_that_can_not_be_streamed_is_refused_where_streaming_is_asked_for() -> None:
    with pytest.raises(PlanRefusedError, match="can't be streamed"):
        answer("flux.1-dev", CATALOGUE.device("a100-80gb"), scheme=INT8, memory_mode=plan_pb2.MEMORY_MODE_BALANCED)
    exact = answer("flux.1-dev", CATALOGUE.device("a100-80gb"), memory_mode=plan_pb2.MEMORY_MODE_BALANCED)
    assert (exact.plan.offload, scheme_of(exact)) == (plan_pb2.OFFLOAD_TIER_GROUP, NONE)


def test_the_native_engine_is_honoured_or_refused() -> None:
    with pytest.raises(PlanRefusedError, match=r"no stable-diffusion\.cpp program"):
        answer("z-image-turbo", cpu(64), engine=plan_pb2.ENGINE_NATIVE)
    with pytest.raises(PlanRefusedError, match="no file of this model"):
        answer("emoji", cpu(64), engine=plan_pb2.ENGINE_NATIVE)
    host = cpu(64)
    host.has_native_engine = True
    native = answer("z-image-turbo", host).plan
    assert native.engine == plan_pb2.ENGINE_NATIVE
    denoiser = next(part for part in native.components if part.name == "transformer")
    # 6,154,908,736 parameters, 34 bytes for 32, and a twentieth on top.
    assert (denoiser.scheme, denoiser.weight_bytes) == (device_pb2.SCHEME_GGUF, int(6_154_908_736 * 34 / 32 * 1.05))


# Milliseconds of a step whose blocks are streamed, and of the dense resident one.
STREAMED_STEPS = [
    ("flux.1-dev", NONE, 546.3, 171.2),
    ("flux.1-dev", STORAGE, 312.5, 171.2),
    ("z-image-turbo", NONE, 239.6, 160.0),
    ("z-image-turbo", STORAGE, 191.3, 160.0),
    ("qwen-image", NONE, 791.1, 200.8),
    ("qwen-image", STORAGE, 404.5, 200.8),
]


@pytest.mark.parametrize(("model", "scheme", "streamed_ms", "resident_ms"), STREAMED_STEPS)
def test_streaming_is_reckoned_as_it_was_measured_on_an_h200(model, scheme, streamed_ms, resident_ms) -> None:
    balanced = plan_pb2.MEMORY_MODE_BALANCED
    streamed = answer(model, CATALOGUE.device("h200"), memory_mode=balanced, scheme=scheme).plan
    assert streamed.offload == plan_pb2.OFFLOAD_TIER_GROUP
    assert streamed.step.ratio == pytest.approx(streamed_ms / resident_ms, rel=0.25)
    assert not streamed.step.is_measured


@pytest.mark.parametrize(("wish", "expected"), [({}, True), ({"fast_accumulate": False}, False)])
def test_float8_accumulates_fast_unless_the_caller_says_otherwise(wish: dict[str, bool], expected: bool) -> None:
    response = answer("flux.1-dev", CATALOGUE.device("h200"), scheme=FP8, **wish)
    part = next(part for part in response.plan.components if part.name == "transformer")
    assert part.recipe.fast_accumulate is expected
    # The catalogue's own recipe is shared by all plans.
    assert CATALOGUE.recipe("flux.1", FP8).fast_accumulate


def test_no_other_scheme_has_anything_to_accumulate_fast() -> None:
    response = answer("flux.1-dev", CATALOGUE.device("rtx-3090"), scheme=INT8, fast_accumulate=True)
    assert not any(part.recipe.fast_accumulate for part in response.plan.components)


@pytest.mark.parametrize("scheme", [MXFP8, NVFP4])
def test_a_plan_with_block_scales_says_that_nobody_has_run_them(scheme: int) -> None:
    assert "UNVERIFIED_ON_HARDWARE" in codes(answer("flux.1-dev", CATALOGUE.device("b200"), scheme=scheme))
    assert "UNVERIFIED_ON_HARDWARE" not in codes(answer("flux.1-dev", CATALOGUE.device("b200")))


def test_text_encoders_keep_weights_alone_in_nvfp4_where_the_denoiser_could_not_compute_in_it() -> None:
    card = gpu("NVIDIA H200", (9, 0), 140 * GIB, probes={FP8: True, NVFP4: True})
    response = answer("flux.1-dev", card, text_encoder_scheme=NVFP4)
    recipes = {part.name: part.recipe for part in response.plan.components if part.scheme == NVFP4}
    assert recipes["text_encoder_2"].weight_only
    assert "UNVERIFIED_ON_HARDWARE" not in codes(response)
    with pytest.raises(PlanRefusedError, match=r"nvfp4 needs CUDA compute capability 10\.0"):
        answer("flux.1-dev", card, scheme=NVFP4)
    with pytest.raises(PlanRefusedError, match="nvfp4 was not seen to run"):
        answer("flux.1-dev", gpu("NVIDIA H200", (9, 0), 140 * GIB, probes={}), text_encoder_scheme=NVFP4)
