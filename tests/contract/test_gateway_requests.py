"""What a gateway refuses, and how it says so; one request is one job."""

from __future__ import annotations

import asyncio
import uuid

import grpc
import pytest

from darkroom.images import MAX_MESSAGE_BYTES
from darkroom.rpc.status import from_rpc_error
from darkroom.v1 import (
    generation_pb2,
    generation_service_pb2,
)
from tests.contract.house import House, T, a_request, code_of, submit

pytestmark = pytest.mark.redis


BAD_FIELDS = [
    ({"width": 0}, "request.width"),
    ({"width": -128}, "request.width"),
    ({"width": 127}, "request.width"),
    ({"height": 4096}, "request.height"),
    ({"steps": 0}, "request.steps"),
    ({"steps": -1}, "request.steps"),
    ({"steps": 51}, "request.steps"),
    ({"guidance": -1.0}, "request.guidance"),
    ({"guidance": float("nan")}, "request.guidance"),
    ({"guidance": float("inf")}, "request.guidance"),
    ({"guidance": 21.0}, "request.guidance"),
    ({"prompt": ""}, "request.prompt"),
    ({"prompt": "a\0b"}, "request.prompt"),
    ({"prompt": "x" * 501}, "request.prompt"),
    ({"negative_prompt": "a\0b"}, "request.negative_prompt"),
    ({"format": 99}, "request.format"),
    ({"preferences": {"scheme": 99}}, "request.preferences.scheme"),
]


@pytest.mark.parametrize(("fields", "path"), BAD_FIELDS)
async def test_a_bad_field_is_named_and_nothing_is_queued(house: House, fields: dict, path: str) -> None:  # type: ignore[type-arg]
    request = generation_pb2.GenerationRequest(**{"model": "tiny", "prompt": "x", **fields})
    with pytest.raises(grpc.aio.AioRpcError) as failure:
        await house.stubs.jobs.SubmitJob(generation_service_pb2.SubmitJobRequest(request=request), timeout=T)
    error = from_rpc_error(failure.value)
    assert failure.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert error.reason == "INVALID_REQUEST"
    assert list(error.violations) == [path]  # type: ignore[attr-defined]
    listed = await house.stubs.jobs.ListJobs(generation_service_pb2.ListJobsRequest(), timeout=T)
    assert not listed.jobs


async def test_unknown_things_are_not_found(house: House) -> None:
    jobs, service = house.stubs.jobs, generation_service_pb2
    for job_id in ("", "nonsense", "../../etc/passwd", "0" * 24, "0" * 100_000):
        expected = (grpc.StatusCode.NOT_FOUND, "UNKNOWN_JOB")
        assert await code_of(jobs.GetJob(service.GetJobRequest(job_id=job_id), timeout=T)) == expected
        assert await code_of(jobs.CancelJob(service.CancelJobRequest(job_id=job_id), timeout=T)) == expected
        assert await code_of(jobs.WatchJob(service.WatchJobRequest(job_id=job_id), timeout=T)) == expected
        assert await code_of(jobs.DownloadOutput(service.DownloadOutputRequest(job_id=job_id), timeout=T)) == expected
    wrong = generation_pb2.GenerationRequest(model="tinny", prompt="x")
    with pytest.raises(grpc.aio.AioRpcError, match="tiny") as failure:
        await jobs.SubmitJob(service.SubmitJobRequest(request=wrong), timeout=T)
    assert failure.value.code() is grpc.StatusCode.NOT_FOUND


async def test_garbage_is_invalid_and_too_much_is_exhausted(house: House) -> None:
    submit_bytes = house.stubs.channel.unary_unary("/darkroom.v1.GenerationService/SubmitJob")
    code, reason = await code_of(submit_bytes(b"\xff\xff\xff", timeout=T))
    assert (code, reason) == (grpc.StatusCode.INVALID_ARGUMENT, "MALFORMED_MESSAGE")
    code, _ = await code_of(submit_bytes(bytes(MAX_MESSAGE_BYTES + 1), timeout=T))
    assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
    generate = house.stubs.channel.unary_stream("/darkroom.v1.GenerationService/Generate")
    assert (await code_of(generate(b"\xff", timeout=T)))[0] is grpc.StatusCode.INVALID_ARGUMENT
    empty = generation_service_pb2.SubmitJobRequest()
    assert (await code_of(house.stubs.jobs.SubmitJob(empty, timeout=T)))[1] == "INVALID_REQUEST"


async def test_fifty_concurrent_submits_with_one_id_make_one_job(house: House) -> None:
    request_id = str(uuid.uuid4())
    jobs = await asyncio.gather(*(submit(house.stubs, request_id=request_id) for _ in range(50)))
    assert len({job.id for job in jobs}) == 1
    assert len({job.request.seed for job in jobs}) == 1
    message = generation_service_pb2.SubmitJobRequest(request=a_request("a pear"), request_id=request_id)
    expected = (grpc.StatusCode.ALREADY_EXISTS, "REQUEST_ID_REUSED")
    assert await code_of(house.stubs.jobs.SubmitJob(message, timeout=T)) == expected
    no_uuid = generation_service_pb2.SubmitJobRequest(request=a_request(), request_id="seven")
    assert (await code_of(house.stubs.jobs.SubmitJob(no_uuid, timeout=T)))[0] is grpc.StatusCode.INVALID_ARGUMENT


async def test_names_and_priorities_that_nobody_knows_are_refused(house: House) -> None:
    for message, tenant in (
        (generation_service_pb2.SubmitJobRequest(request=a_request()), "No Such Name"),
        (generation_service_pb2.SubmitJobRequest(request=a_request(), terms={"priority": 9}), "a"),  # type: ignore[arg-type]
    ):
        call = house.stubs.jobs.SubmitJob(message, timeout=T, metadata=(("x-darkroom-tenant", tenant),))
        assert await code_of(call) == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_REQUEST")
