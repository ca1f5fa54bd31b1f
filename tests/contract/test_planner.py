"""The planner as a process, asked over gRPC."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator

import grpc
import pytest
from google.rpc import error_details_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_status import rpc_status

from darkroom.v1 import planner_service_pb2, planner_service_pb2_grpc
from tests.unit.planner.describing import cpu


@pytest.fixture(scope="module")
def channel() -> Iterator[grpc.Channel]:
    environment = os.environ | {"DARKROOM_PLANNER_LISTEN": "127.0.0.1:0"}
    command = [sys.executable, "-m", "services.planner"]
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        address = next(record["address"] for record in map(json.loads, process.stderr) if record["event"] == "serving")
        with grpc.insecure_channel(address) as channel:
            yield channel
        process.terminate()
        assert process.wait(10) == 0


def reason_of(error: grpc.RpcError) -> str:
    details = rpc_status.from_call(error).details
    info = error_details_pb2.ErrorInfo()
    next(detail for detail in details if detail.Is(info.DESCRIPTOR)).Unpack(info)
    return info.reason


def test_it_answers_a_plan(channel: grpc.Channel) -> None:
    stub = planner_service_pb2_grpc.PlannerServiceStub(channel)
    request = planner_service_pb2.PlanRequest(model="emoji", device=cpu())
    first, second = (stub.Plan(request, timeout=5) for _ in range(2))
    assert first.plan.model == "emoji"
    assert first.SerializeToString(deterministic=True) == second.SerializeToString(deterministic=True)


@pytest.mark.parametrize(
    ("request_fields", "code", "reason"),
    [
        ({"model": "no-such"}, grpc.StatusCode.NOT_FOUND, "UNKNOWN_MODEL"),
        ({"model": "emoji", "device": None}, grpc.StatusCode.INVALID_ARGUMENT, "INVALID_REQUEST"),
        (
            {"model": "emoji", "preferences": {"scheme": "SCHEME_INT8"}},
            grpc.StatusCode.FAILED_PRECONDITION,
            "PLAN_REFUSED",
        ),
    ],
)
def test_a_wrong_question_is_a_status_with_its_reason(channel, request_fields, code, reason) -> None:
    stub = planner_service_pb2_grpc.PlannerServiceStub(channel)
    request = planner_service_pb2.PlanRequest(**({"device": cpu()} | request_fields))
    with pytest.raises(grpc.RpcError) as refused:
        stub.Plan(request, timeout=5)
    assert (refused.value.code(), reason_of(refused.value)) == (code, reason)


def test_it_tells_its_health(channel: grpc.Channel) -> None:
    check = health_pb2.HealthCheckRequest(service="darkroom.v1.PlannerService")
    answer = health_pb2_grpc.HealthStub(channel).Check(check, timeout=5)
    assert answer.status == health_pb2.HealthCheckResponse.SERVING
