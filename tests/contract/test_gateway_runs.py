"""What a gateway does with a job: loads what it needs once, runs it, keeps its file."""

from __future__ import annotations

import pytest

from darkroom.v1 import (
    device_pb2,
    generation_service_pb2,
    job_pb2,
)
from tests.contract.house import House, T, a_request, check_truth, download, finish, submit, watch
from tests.fakes.worker import picture

pytestmark = pytest.mark.redis


async def test_a_submitted_job_succeeds_and_its_file_is_what_the_worker_made(house: House) -> None:
    job = await submit(house.stubs, seed=0)
    assert job.state == job_pb2.JOB_STATE_QUEUED
    assert (job.request.width, job.request.steps, job.request.seed) == (128, 4, 0)
    events = await watch(house.stubs, job.id)
    check_truth(events)
    done = events[-1].job
    assert done.state == job_pb2.JOB_STATE_SUCCEEDED, done.error
    assert done.attempts == 1
    assert done.worker_id == "fake-0"
    output, data = await download(house.stubs, job.id)
    assert data == picture(done.request, 3000)
    assert output == done.output
    assert house.worker.acknowledged == [job.id]


async def test_the_second_job_is_neither_planned_nor_loaded_again(house: House) -> None:
    await finish(house.stubs, (await submit(house.stubs)).id)
    await finish(house.stubs, (await submit(house.stubs)).id)
    await finish(house.stubs, (await submit(house.stubs, width=64, height=64)).id)
    assert (len(house.planner.questions), len(house.worker.loads)) == (1, 1)


async def test_a_larger_picture_is_planned_and_loads_nothing_where_the_plan_is_the_same(house: House) -> None:
    await finish(house.stubs, (await submit(house.stubs)).id)
    await finish(house.stubs, (await submit(house.stubs, width=256, height=256)).id)
    assert (len(house.planner.questions), len(house.worker.loads)) == (2, 1)


async def test_other_preferences_load_another_plan(house: House) -> None:
    await finish(house.stubs, (await submit(house.stubs)).id)
    request = a_request()
    request.preferences.scheme = device_pb2.SCHEME_INT8
    message = generation_service_pb2.SubmitJobRequest(request=request)
    job = (await house.stubs.jobs.SubmitJob(message, timeout=T)).job
    assert (await finish(house.stubs, job.id)).state == job_pb2.JOB_STATE_SUCCEEDED
    assert len(house.worker.loads) == 2


async def test_a_replan_loads_the_new_plan_under_the_same_token(house: House) -> None:
    house.worker.wants_replan = True
    assert (await finish(house.stubs, (await submit(house.stubs)).id)).state == job_pb2.JOB_STATE_SUCCEEDED
    first, second = house.worker.loads
    assert (first.replanned, second.replanned) == (False, True)
    assert first.token == second.token


async def test_jobs_in_a_row_never_wait_for_a_poll(house: House) -> None:
    """Statuses that were read while a job ran must not keep the next one waiting; the slow look is every 2 s."""
    await finish(house.stubs, (await submit(house.stubs)).id)
    waits = []
    for steps in (1, 7, 2, 20, 3, 25, 1, 12, 30, 2, 2, 40):
        done = await finish(house.stubs, (await submit(house.stubs, steps=steps)).id)
        waits.append(done.started_at.ToNanoseconds() - done.created_at.ToNanoseconds())
    assert max(waits) < 0.9e9


async def test_an_absent_seed_is_drawn_and_told(house: House) -> None:
    seeds = {(await submit(house.stubs)).request.seed for _ in range(3)}
    assert len(seeds) == 3
    assert max(seeds) < 2**53
