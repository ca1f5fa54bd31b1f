"""The plumbing that all services share, driven over real sockets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace

import grpc
import pytest
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from darkroom.rpc.channels import open_channel
from darkroom.rpc.errors import (
    DarkroomError,
    DeadlineError,
    ExhaustedError,
    InternalError,
    InvalidRequestError,
    MalformedMessageError,
    QueueFullError,
    StaleTokenError,
    UnavailableError,
)
from darkroom.rpc.handlers import add_servicer
from darkroom.rpc.status import from_rpc_error
from darkroom.v1 import (
    generation_service_pb2,
    generation_service_pb2_grpc,
    planner_service_pb2,
    planner_service_pb2_grpc,
)

PLAN = "/darkroom.v1.PlannerService/Plan"


class ScriptedPlanner(planner_service_pb2_grpc.PlannerServiceServicer):
    """Answers by the model's name; three lines each."""

    async def Plan(self, request, context):  # type: ignore[no-untyped-def]
        match request.model:
            case "bad":
                raise InvalidRequestError({"model": "'bad'; give a good one"}, max_length_characters=3)
            case "full":
                raise QueueFullError("the queue holds 2 of 2 jobs", retry_after_s=1.5, subject="tenant:a")
            case "bug":
                raise ZeroDivisionError
            case "slow":
                await asyncio.sleep(30)
            case "long":
                raise StaleTokenError("x" * 100_000, detail="y" * 100_000)
        return planner_service_pb2.PlanResponse()


@pytest.fixture
async def planner() -> AsyncIterator[SimpleNamespace]:
    server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
    add_servicer(server, ScriptedPlanner(), planner_service_pb2.DESCRIPTOR.services_by_name["PlannerService"])
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with open_channel(f"127.0.0.1:{port}") as channel:
        yield SimpleNamespace(channel=channel, stub=planner_service_pb2_grpc.PlannerServiceStub(channel))
    await server.stop(None)


async def failure_of(call) -> tuple[DarkroomError, grpc.aio.AioRpcError]:  # type: ignore[no-untyped-def]
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return from_rpc_error(caught.value), caught.value


def detail(failure: grpc.aio.AioRpcError, kind):  # type: ignore[no-untyped-def]
    found = kind()
    status = rpc_status.from_call(failure)
    assert status is not None
    assert any(item.Unpack(found) for item in status.details)
    return found


async def test_a_bad_field_is_named_in_the_details(planner: SimpleNamespace) -> None:
    error, failure = await failure_of(planner.stub.Plan(planner_service_pb2.PlanRequest(model="bad"), timeout=5))
    assert isinstance(error, InvalidRequestError)
    assert error.violations == {"model": "'bad'; give a good one"}
    assert failure.code() is grpc.StatusCode.INVALID_ARGUMENT
    info = detail(failure, error_details_pb2.ErrorInfo)
    assert (info.reason, info.domain, dict(info.metadata)) == (
        "INVALID_REQUEST",
        "darkroom.dev",
        {"max_length_characters": "3"},
    )


async def test_a_full_queue_says_when_to_come_back_and_whose_quota_it_was(planner: SimpleNamespace) -> None:
    error, failure = await failure_of(planner.stub.Plan(planner_service_pb2.PlanRequest(model="full"), timeout=5))
    assert isinstance(error, QueueFullError)
    assert error.retry_after_s == 1.5
    assert detail(failure, error_details_pb2.QuotaFailure).violations[0].subject == "tenant:a"


async def test_our_own_bug_is_internal_without_a_traceback(planner: SimpleNamespace) -> None:
    error, failure = await failure_of(planner.stub.Plan(planner_service_pb2.PlanRequest(model="bug"), timeout=5))
    assert isinstance(error, InternalError)
    assert "Traceback" not in str(failure.details())


async def test_garbage_is_the_callers_mistake(planner: SimpleNamespace) -> None:
    error, failure = await failure_of(planner.channel.unary_unary(PLAN)(b"\xff\xff\xff", timeout=5))
    assert isinstance(error, MalformedMessageError)
    assert failure.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_a_message_over_four_mebibytes_is_refused_by_the_core(planner: SimpleNamespace) -> None:
    error, _ = await failure_of(planner.channel.unary_unary(PLAN)(b"\0" * (4 << 20) + b"\0", timeout=5))
    assert isinstance(error, ExhaustedError)


async def test_a_deadline_ends_the_call(planner: SimpleNamespace) -> None:
    error, _ = await failure_of(planner.stub.Plan(planner_service_pb2.PlanRequest(model="slow"), timeout=0.05))
    assert isinstance(error, DeadlineError)


async def test_details_stay_under_the_trailer_limit(planner: SimpleNamespace) -> None:
    error, _ = await failure_of(planner.stub.Plan(planner_service_pb2.PlanRequest(model="long"), timeout=5))
    assert isinstance(error, StaleTokenError)
    assert len(error.message) <= 1500


async def test_a_call_without_a_timeout_is_a_mistake_of_ours(planner: SimpleNamespace) -> None:
    with pytest.raises(ValueError, match="without a timeout"):
        await planner.stub.Plan(planner_service_pb2.PlanRequest(model="good"))


async def test_nobody_there_is_unavailable() -> None:
    async with open_channel("127.0.0.1:1") as channel:
        stub = planner_service_pb2_grpc.PlannerServiceStub(channel)
        error, _ = await failure_of(stub.Plan(planner_service_pb2.PlanRequest(), timeout=5))
    assert isinstance(error, UnavailableError)


def test_a_servicer_that_lacks_a_method_is_refused_at_registration() -> None:
    service = generation_service_pb2.DESCRIPTOR.services_by_name["GenerationService"]
    with pytest.raises(TypeError, match="can't serve"):
        add_servicer(None, object(), service)  # type: ignore[arg-type]
    assert generation_service_pb2_grpc.GenerationServiceStub
