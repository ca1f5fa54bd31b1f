"""Streams: a generate tells all; a watch and a download go on where they stopped; only a dropped generate cancels."""

from __future__ import annotations

import grpc
import pytest

from darkroom.v1 import (
    generation_pb2,
    generation_service_pb2,
    job_pb2,
)
from tests.contract.house import House, T, a_request, check_truth, code_of, download, finish, submit, until_state, watch
from tests.fakes.worker import picture

pytestmark = pytest.mark.redis


async def test_generate_tells_the_id_first_then_progress_then_the_file(house: House) -> None:
    house.worker.file_bytes = 600_000
    answers = [
        answer
        async for answer in house.stubs.jobs.Generate(
            generation_service_pb2.GenerateRequest(request=a_request(steps=6)), timeout=T
        )
    ]
    assert answers[0].event.job.id
    events = [answer.event for answer in answers if answer.HasField("event")]
    check_truth(events)
    steps = [event.progress.completed for event in events if event.progress.phase == generation_pb2.PHASE_DENOISING]
    assert steps == [1, 2, 3, 4, 5, 6]
    chunks = [answer.chunk for answer in answers if answer.HasField("chunk")]
    assert [len(chunk.data) for chunk in chunks] == [262144, 262144, 75712]
    assert b"".join(chunk.data for chunk in chunks) == picture(events[-1].job.request, 600_000)


async def test_a_watch_resumes_after_its_cursor(house: House) -> None:
    house.worker.step_s = 0.05
    job = await submit(house.stubs, steps=10)
    request = generation_service_pb2.WatchJobRequest(job_id=job.id)
    seen: list[job_pb2.JobEvent] = []
    call = house.stubs.jobs.WatchJob(request, timeout=T)
    async for answer in call:
        seen.append(answer.event)
        if answer.event.progress.completed == 4:
            break
    call.cancel()
    rest = await watch(house.stubs, job.id, after=seen[-1].sequence)
    assert rest[0].job.state == job_pb2.JOB_STATE_RUNNING
    assert rest[0].sequence == seen[-1].sequence
    assert rest[0].job.progress.completed == 4
    assert [event.sequence for event in rest[1:-1]] == list(range(rest[0].sequence + 1, rest[-1].sequence))
    check_truth(rest)


async def test_watching_an_ended_job_tells_its_end_and_nothing_else(house: House) -> None:
    job = await finish(house.stubs, (await submit(house.stubs)).id)
    for after in (0, 3, 10_000):
        events = await watch(house.stubs, job.id, after)
        assert [event.job.state for event in events] == [job_pb2.JOB_STATE_SUCCEEDED]


async def test_a_download_resumes_at_any_offset(house: House) -> None:
    house.worker.file_bytes = 300_000
    job = await finish(house.stubs, (await submit(house.stubs)).id)
    whole = picture(job.request, 300_000)
    for offset in (0, 1, 262_144, 299_999, 300_000):
        assert (await download(house.stubs, job.id, offset))[1] == whole[offset:]
    for offset in (300_001, -1):
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await download(house.stubs, job.id, offset)
        assert failure.value.code() is grpc.StatusCode.OUT_OF_RANGE


async def test_a_dropped_generate_cancels_its_job_and_a_dropped_watch_does_not(house: House) -> None:
    house.worker.step_s = 0.05
    call = house.stubs.jobs.Generate(generation_service_pb2.GenerateRequest(request=a_request(steps=50)), timeout=T)
    first = await anext(aiter(call))
    call.cancel()
    await until_state(house.stubs, first.event.job.id, job_pb2.JOB_STATE_CANCELLED)
    job = await submit(house.stubs, steps=10)
    watching = house.stubs.jobs.WatchJob(generation_service_pb2.WatchJobRequest(job_id=job.id), timeout=T)
    await anext(aiter(watching))
    watching.cancel()
    assert (await finish(house.stubs, job.id)).state == job_pb2.JOB_STATE_SUCCEEDED


async def test_a_job_without_a_file_can_not_be_downloaded(house: House) -> None:
    job = await finish(house.stubs, (await submit(house.stubs, "refused")).id)
    assert (job.state, job.error.reason) == (job_pb2.JOB_STATE_FAILED, "INVALID_REQUEST")
    request = generation_service_pb2.DownloadOutputRequest(job_id=job.id)
    expected = (grpc.StatusCode.FAILED_PRECONDITION, "NO_OUTPUT")
    assert await code_of(house.stubs.jobs.DownloadOutput(request, timeout=T)) == expected
