"""Requests that make no sense: refused with a reason of ours, never an accident."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from darkroom.knowledge import load_catalogue
from darkroom.rpc.errors import DarkroomError
from darkroom.v1 import checkpoint_pb2, device_pb2, plan_pb2, planner_service_pb2, worker_pb2
from services.planner.planning import plan

CATALOGUE = load_catalogue()
MODELS = [variant.name for variant in CATALOGUE]
words = st.sampled_from([*[0] * 60, 1, 2, 3, 4, 5, 6, 7, 99])
kinds = st.sampled_from([1, 2, 2, 2, 3, 4, 5])
numbers = st.sampled_from([*[0] * 20, 1, 7, 512, 1024, 2**31 - 1, -1])
bytes_ = st.sampled_from([*[0, 1, 2**30, 2**35, 2**37, 2**40, 2**62] * 6, -1])


@st.composite
def requests(draw) -> planner_service_pb2.PlanRequest:
    memory = device_pb2.DeviceMemory(
        total_bytes=draw(bytes_), foreign_bytes=draw(bytes_), host_free_bytes=draw(bytes_), free_bytes=draw(bytes_)
    )
    device = device_pb2.Device(
        kind=draw(kinds),
        name=draw(st.text(max_size=5)),
        capability=device_pb2.ComputeCapability(major=draw(numbers), minor=draw(numbers)),
        memory=memory,
        is_assumed=draw(st.booleans()),
        can_compile=draw(st.booleans()),
        probes=[device_pb2.SchemeProbe(scheme=draw(words), works=True)],
        host_link_bytes_per_second=draw(bytes_),
    )
    wishes = plan_pb2.PlanPreferences(
        scheme=draw(words),
        memory_mode=draw(words),
        speed_mode=draw(words),
        text_encoder_scheme=draw(words),
        vae_scheme=draw(words),
        attention=draw(words),
        step_cache=draw(words),
        step_cache_quality=draw(words),
        engine=draw(words),
        adapters=[plan_pb2.Adapter(weight=draw(st.sampled_from([0.0, 1.0, 2.0, float("nan")])))]
        * draw(st.integers(0, 1)),
        allows_scheme_fallback=draw(st.booleans()),
    )
    if draw(st.booleans()):
        wishes.source.CopyFrom(checkpoint_pb2.CheckpointSource(kind=draw(words), size_bytes=draw(bytes_)))
    request = planner_service_pb2.PlanRequest(
        model=draw(st.sampled_from([*MODELS, "", "?"])),
        device=device,
        preferences=wishes,
        workload=plan_pb2.Workload(
            width=draw(numbers), height=draw(numbers), batch_size=draw(numbers), num_frames=draw(numbers)
        ),
        inspection=worker_pb2.Inspection(present_bytes=draw(bytes_), disk_free_bytes=draw(bytes_)),
    )
    if draw(st.booleans()):
        request.loaded.CopyFrom(plan_pb2.Plan(memory=plan_pb2.MemoryBudget(overhead_bytes=draw(bytes_))))
        request.loaded.memory.stages.add(stage=draw(words), weight_bytes=draw(bytes_))
    return request


@settings(max_examples=400, deadline=None)
@given(requests())
def test_nothing_but_a_plan_or_an_error_of_ours_comes_back(request) -> None:
    try:
        answer = plan(request, CATALOGUE)
    except DarkroomError:
        return
    assert answer.SerializeToString(deterministic=True)
