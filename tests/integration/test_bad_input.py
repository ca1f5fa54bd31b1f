"""What the real stack refuses: each a status code, with details that name the field and the reason."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from darkroom.client import Client, errors
from darkroom.images import MAX_MESSAGE_BYTES
from darkroom.v1 import generation_pb2, generation_service_pb2, generation_service_pb2_grpc
from tests.integration.conftest import RunningStack

SUBMIT = "/darkroom.v1.GenerationService/SubmitJob"
CALL_S = 10.0


@pytest.fixture(scope="module")
def channel(stack: RunningStack) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(stack.address) as opened:
        yield opened


def details_of(failure: grpc.RpcError) -> tuple[error_details_pb2.ErrorInfo, error_details_pb2.BadRequest]:
    info, bad = error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest()
    status = rpc_status.from_call(failure)
    assert status is not None
    for detail in status.details:
        detail.Unpack(info)
        detail.Unpack(bad)
    return info, bad


def refusal_of(channel: grpc.Channel, **fields: Any) -> grpc.RpcError:
    request = generation_pb2.GenerationRequest(**{"model": "emoji", "prompt": "a red apple", **fields})
    stub = generation_service_pb2_grpc.GenerationServiceStub(channel)
    with pytest.raises(grpc.RpcError) as refused:
        stub.SubmitJob(generation_service_pb2.SubmitJobRequest(request=request), timeout=CALL_S)
    return refused.value


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"width": 100}, "request.width"),
        ({"height": 0}, "request.height"),
        ({"width": 8192, "height": 8192}, "request.width"),
        ({"steps": 0}, "request.steps"),
        ({"steps": 10**6}, "request.steps"),
        ({"guidance": -0.5}, "request.guidance"),
        ({"guidance": float("inf")}, "request.guidance"),
        ({"prompt": ""}, "request.prompt"),
        ({"prompt": "x" * 100_000}, "request.prompt"),
        ({"format": 99}, "request.format"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_wrong_field_is_invalid_argument_and_named(channel: grpc.Channel, fields: dict[str, Any], named: str) -> None:
    refusal = refusal_of(channel, **fields)
    assert refusal.code() is grpc.StatusCode.INVALID_ARGUMENT
    info, bad = details_of(refusal)
    assert (info.reason, info.domain) == ("INVALID_REQUEST", "darkroom.dev")
    assert named in [violation.field for violation in bad.field_violations]


def test_an_unknown_model_is_not_found(channel: grpc.Channel) -> None:
    refusal = refusal_of(channel, model="emojy")
    assert refusal.code() is grpc.StatusCode.NOT_FOUND
    assert details_of(refusal)[0].reason == "UNKNOWN_MODEL"


@pytest.mark.parametrize("method", ["GetJob", "CancelJob"])
def test_an_unknown_job_is_not_found(channel: grpc.Channel, method: str) -> None:
    stub = generation_service_pb2_grpc.GenerationServiceStub(channel)
    request = getattr(generation_service_pb2, f"{method}Request")(job_id="nope")
    with pytest.raises(grpc.RpcError) as refused:
        getattr(stub, method)(request, timeout=CALL_S)
    assert refused.value.code() is grpc.StatusCode.NOT_FOUND
    assert details_of(refused.value)[0].reason == "UNKNOWN_JOB"


def test_garbage_is_invalid_argument(channel: grpc.Channel) -> None:
    with pytest.raises(grpc.RpcError) as refused:
        channel.unary_unary(SUBMIT)(b"\xff\xff\xff\xff", timeout=CALL_S)
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert details_of(refused.value)[0].reason == "MALFORMED_MESSAGE"


def test_a_message_over_the_limit_is_resource_exhausted(channel: grpc.Channel) -> None:
    with pytest.raises(grpc.RpcError) as refused:
        channel.unary_unary(SUBMIT)(bytes(MAX_MESSAGE_BYTES + 1), timeout=CALL_S)
    assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


def test_nothing_of_that_was_queued(client: Client) -> None:
    before = len(client.list_jobs(limit=500))
    for fields in ({"width": 100}, {"steps": 0}, {"model": "emojy"}):
        with pytest.raises(errors.DarkroomError):
            client.submit("a red apple", **fields)  # type: ignore[arg-type]
    assert len(client.list_jobs(limit=500)) == before


def test_a_model_whose_weights_are_not_here_fails_with_a_reason(client: Client) -> None:
    with pytest.raises(errors.DarkroomError) as failed:
        client.generate("a red apple", model="flux.1-dev")
    assert failed.value.reason in ("NOTHING_FITS", "SOURCE_REFUSED")
    assert client.generate("a red apple", seed=1).data
