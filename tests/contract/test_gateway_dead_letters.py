"""Dead jobs: listed with their evidence, in pages; tried again as new jobs; the dead ones stay as they ended."""

from __future__ import annotations

import uuid

import grpc
import pytest

from darkroom.v1 import generation_service_pb2, job_pb2
from tests.contract.house import House, T, code_of, finish, get, submit

pytestmark = pytest.mark.redis


async def list_dead(house: House, **page: object) -> generation_service_pb2.ListDeadJobsResponse:
    request = generation_service_pb2.ListDeadJobsRequest(**page)  # type: ignore[arg-type]
    return await house.stubs.jobs.ListDeadJobs(request, timeout=T)


async def redrive(house: House, job_id: str, request_id: str = "") -> job_pb2.Job:
    request = generation_service_pb2.RedriveJobRequest(job_id=job_id, request_id=request_id)
    return (await house.stubs.jobs.RedriveJob(request, timeout=T)).job


async def test_a_poison_job_tells_who_died_of_it_and_how_and_can_be_tried_again(house: House) -> None:
    healthy = await finish(house.stubs, (await submit(house.stubs)).id)
    dead = await finish(house.stubs, (await submit(house.stubs, "dies", seed=7)).id)
    assert dead.error.reason == "POISON"
    (listed,) = (await list_dead(house)).jobs
    assert listed == dead
    told = [
        (one.attempt, one.worker_id, one.error.reason, one.error.metadata["signal"]) for one in listed.failed_attempts
    ]
    assert told == [(1, "fake-0", "ENGINE_DIED", "9"), (2, "fake-0", "ENGINE_DIED", "9")]
    request_id = str(uuid.uuid4())
    again = await redrive(house, dead.id, request_id)
    assert (again.request, again.redriven_from) == (dead.request, dead.id)
    assert (await redrive(house, dead.id, request_id)).id == (await redrive(house, dead.id)).id == again.id
    assert (await get(house.stubs, dead.id)).redriven_as == again.id
    assert (await finish(house.stubs, again.id)).error.reason == "POISON"
    assert [job.id for job in (await list_dead(house)).jobs] == [again.id]
    refused = house.stubs.jobs.RedriveJob(generation_service_pb2.RedriveJobRequest(job_id=healthy.id), timeout=T)
    assert await code_of(refused) == (grpc.StatusCode.FAILED_PRECONDITION, "NOT_DEAD")
    unknown = house.stubs.jobs.RedriveJob(generation_service_pb2.RedriveJobRequest(job_id="0" * 24), timeout=T)
    assert await code_of(unknown) == (grpc.StatusCode.NOT_FOUND, "UNKNOWN_JOB")


async def test_a_job_that_recovered_keeps_the_evidence_and_is_not_dead(house: House) -> None:
    done = await finish(house.stubs, (await submit(house.stubs, "dies once")).id)
    assert done.state == job_pb2.JOB_STATE_SUCCEEDED
    assert [one.error.reason for one in done.failed_attempts] == ["ENGINE_DIED"]
    failed = await finish(house.stubs, (await submit(house.stubs, "refused")).id)
    assert failed.state == job_pb2.JOB_STATE_FAILED
    assert not (await list_dead(house)).jobs


async def test_the_dead_are_listed_in_pages(house: House) -> None:
    dead = [(await finish(house.stubs, (await submit(house.stubs, "dies")).id)).id for _ in range(3)]
    page = await list_dead(house, page_size=2)
    rest = await list_dead(house, page_size=2, page_token=page.next_page_token)
    assert [job.id for job in (*page.jobs, *rest.jobs)] == dead[::-1]
    assert rest.next_page_token == ""
    for bad in ({"page_size": -1}, {"page_token": "nonsense"}):
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await list_dead(house, **bad)
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
