"""A job is cancelled in whatever state it is."""

from __future__ import annotations

import asyncio

import pytest

from darkroom.v1 import (
    generation_service_pb2,
    job_pb2,
)
from tests.contract.house import House, T, finish, submit, until_state

pytestmark = pytest.mark.redis


async def test_a_queued_job_is_cancelled_at_once(house: House) -> None:
    house.worker.step_s = 0.1
    running = await submit(house.stubs)
    await until_state(house.stubs, running.id, job_pb2.JOB_STATE_RUNNING)
    waiting = await submit(house.stubs)
    for _ in range(2):
        request = generation_service_pb2.CancelJobRequest(job_id=waiting.id)
        job = (await house.stubs.jobs.CancelJob(request, timeout=T)).job
        assert job.state == job_pb2.JOB_STATE_CANCELLED
    assert (await finish(house.stubs, running.id)).state == job_pb2.JOB_STATE_SUCCEEDED
    assert house.worker.starts[waiting.id] == 0


async def test_a_running_job_stops_at_its_next_step(house: House) -> None:
    house.worker.step_s = 0.1
    job = await submit(house.stubs, steps=50)
    await until_state(house.stubs, job.id, job_pb2.JOB_STATE_RUNNING)
    await asyncio.sleep(0.3)
    request = generation_service_pb2.CancelJobRequest(job_id=job.id)
    for _ in range(2):
        await house.stubs.jobs.CancelJob(request, timeout=T)
    async with asyncio.timeout(1.0):
        done = await finish(house.stubs, job.id)
    assert (done.state, done.error.reason) == (job_pb2.JOB_STATE_CANCELLED, "CANCELLED")
    assert house.worker.steps[job.id] < 10
    assert (await finish(house.stubs, (await submit(house.stubs)).id)).state == job_pb2.JOB_STATE_SUCCEEDED


async def test_a_job_whose_model_is_loading_is_cancelled_at_once(house: House) -> None:
    house.worker.load_s = 1.5
    job = await submit(house.stubs)
    await until_state(house.stubs, job.id, job_pb2.JOB_STATE_RUNNING)
    await asyncio.sleep(0.2)
    await house.stubs.jobs.CancelJob(generation_service_pb2.CancelJobRequest(job_id=job.id), timeout=T)
    async with asyncio.timeout(1.0):
        assert (await finish(house.stubs, job.id)).state == job_pb2.JOB_STATE_CANCELLED
    house.worker.load_s = 0.01
    assert (await finish(house.stubs, (await submit(house.stubs)).id)).state == job_pb2.JOB_STATE_SUCCEEDED
