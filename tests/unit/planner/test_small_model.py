"""The bundled model on a processor: the plan that every newcomer's first picture runs under."""

import pytest

from darkroom.knowledge import load_catalogue
from darkroom.rpc.errors import InvalidRequestError, PlanRefusedError, UnknownModelError
from darkroom.v1 import device_pb2, plan_pb2, planner_service_pb2
from services.planner.planning import plan
from tests.unit.planner.describing import GIB, cpu


@pytest.fixture(scope="module")
def catalogue():
    return load_catalogue()


def request(model="emoji", device=None, **preferences):
    return planner_service_pb2.PlanRequest(
        model=model, device=device or cpu(), preferences=plan_pb2.PlanPreferences(**preferences)
    )


def test_it_runs_dense_and_resident_in_float32(catalogue):
    answer = plan(request(), catalogue).plan
    assert answer.engine == plan_pb2.ENGINE_DIFFUSERS
    assert answer.offload == plan_pb2.OFFLOAD_TIER_NONE
    assert answer.compute_type == plan_pb2.COMPUTE_TYPE_FLOAT32
    assert {component.scheme for component in answer.components} == {device_pb2.SCHEME_NONE}
    assert "COMPUTE_FLOAT32" in {reason.code for reason in answer.reasons}
    assert not answer.is_assumed


def test_its_bytes_are_four_a_parameter(catalogue):
    answer = plan(request(), catalogue).plan
    assert {item.name: item.weight_bytes for item in answer.components} == {
        "text_encoder": 537_216 * 4,
        "text_encoder_2": 1_131_552 * 4,
        "transformer": 11_094_848 * 4,
        "vae": 3_793_091 * 4,
    }
    assert answer.memory.weight_bytes == 16_556_707 * 4
    assert answer.memory.reserve_bytes == 16 * GIB // 10
    assert answer.memory.budget_bytes == 16 * GIB - 2 * GIB - 16 * GIB // 10


def test_bfloat16_is_taken_only_where_it_runs_on_native_units(catalogue):
    answer = plan(request(device=cpu(has_native_bf16=True)), catalogue).plan
    assert answer.compute_type == plan_pb2.COMPUTE_TYPE_BFLOAT16
    assert answer.memory.weight_bytes == 16_556_707 * 2


def test_its_call_carries_what_no_caller_needs_to_know(catalogue):
    call = plan(request(), catalogue).plan.call
    assert (call.guidance_argument, call.takes_negative_prompt) == ("true_cfg_scale", True)
    assert [(item.name, item.int_value) for item in call.arguments] == [("max_sequence_length", 32)]


def test_the_same_request_gives_the_same_bytes(catalogue):
    one = plan(request(), catalogue).SerializeToString(deterministic=True)
    assert one == plan(request(), load_catalogue()).SerializeToString(deterministic=True)


def test_a_scheme_that_the_device_was_not_seen_to_run_is_refused_with_the_reason(catalogue):
    with pytest.raises(PlanRefusedError, match="int8 was not seen to run on a processor"):
        plan(request(scheme=device_pb2.SCHEME_INT8), catalogue)


def test_the_same_wish_falls_back_and_says_so_where_the_caller_allows_it(catalogue):
    answer = plan(request(scheme=device_pb2.SCHEME_INT8, allows_scheme_fallback=True), catalogue).plan
    assert {component.scheme for component in answer.components} == {device_pb2.SCHEME_NONE}
    assert "SCHEME_UNPROVEN" in {reason.code for reason in answer.reasons}


def test_nothing_fits_is_an_answer_with_the_figures_of_every_candidate(catalogue):
    answer = plan(request("flux.1-dev", cpu(total_gib=8)), catalogue)
    assert answer.WhichOneof("outcome") == "no_fit"
    best = answer.no_fit.candidates[0]
    assert best.memory.required_bytes > best.memory.limit_bytes > 0
    assert "67.5 GB weights" in best.reason.sentence


def test_a_device_that_does_not_tell_its_memory_is_said_to_be_unknown(catalogue):
    device = device_pb2.Device(kind=device_pb2.DEVICE_KIND_CPU, has_unified_memory=True)
    answer = plan(request(device=device), catalogue).plan
    assert answer.memory.total_bytes == 0
    assert answer.reasons[0].code == "MEMORY_UNKNOWN"


def test_an_unknown_model_and_a_missing_device_are_refused(catalogue):
    with pytest.raises(UnknownModelError, match="emoji"):
        plan(request("emojy"), catalogue)
    with pytest.raises(InvalidRequestError, match=r"device\.kind"):
        plan(planner_service_pb2.PlanRequest(model="emoji"), catalogue)


@pytest.mark.parametrize(
    ("workload", "field"),
    [
        ({"width": -1}, "workload.width"),
        ({"width": 2**31 - 1, "height": 2**31 - 1, "batch_size": 2**31 - 1}, "workload"),
    ],
)
def test_a_senseless_workload_is_refused_with_the_field(catalogue, workload, field):
    wrong = request()
    wrong.workload.CopyFrom(plan_pb2.Workload(**workload))
    with pytest.raises(InvalidRequestError) as refused:
        plan(wrong, catalogue)
    assert field in refused.value.violations
