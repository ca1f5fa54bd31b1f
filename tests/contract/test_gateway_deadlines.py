"""Deadlines: a job past its own is not started, a running one stops at its next step, and calls carry what is left."""

from __future__ import annotations

import asyncio
import time
import uuid
from pathlib import Path

import grpc
import pytest

from darkroom.v1 import generation_service_pb2, job_pb2
from tests.contract.house import (
    House,
    T,
    a_request,
    check_truth,
    code_of,
    finish,
    settings_for,
    until_state,
    watch,
)
from tests.contract.house import submit as submit_without
from tests.fakes.gateway import Stubs, serve_gateway

pytestmark = pytest.mark.redis
FAILED = job_pb2.JOB_STATE_FAILED


def terms_of(deadline_s: float) -> job_pb2.JobTerms:
    terms = job_pb2.JobTerms()
    terms.deadline.FromMilliseconds(int(deadline_s * 1000))
    return terms


async def submit(stubs: Stubs, deadline_s: float, request_id: str = "", **fields: object) -> job_pb2.Job:
    message = generation_service_pb2.SubmitJobRequest(
        request=a_request(**fields), request_id=request_id, terms=terms_of(deadline_s)
    )
    return (await stubs.jobs.SubmitJob(message, timeout=T)).job


async def test_a_job_behind_a_longer_one_fails_at_its_deadline_and_is_never_started(house: House) -> None:
    house.worker.step_s = 0.1
    long = await submit_without(house.stubs, steps=50)
    await until_state(house.stubs, long.id, job_pb2.JOB_STATE_RUNNING)
    began = time.monotonic()
    job = await submit(house.stubs, 1.0)
    assert job.deadline_at.ToMilliseconds() - job.created_at.ToMilliseconds() == 1000
    events = await watch(house.stubs, job.id)
    assert 0.95 < time.monotonic() - began < 1.5
    check_truth(events)
    done = events[-1].job
    assert (done.state, done.error.reason, done.attempts) == (FAILED, "DEADLINE_EXCEEDED", 0)
    assert house.worker.starts[job.id] == 0
    await house.stubs.jobs.CancelJob(generation_service_pb2.CancelJobRequest(job_id=long.id), timeout=T)


async def test_a_running_job_stops_at_its_next_step_and_the_worker_is_free_again(house: House) -> None:
    house.worker.step_s = 0.1
    job = await submit(house.stubs, 1.0, steps=50)
    events = await watch(house.stubs, job.id)
    check_truth(events)
    done = events[-1].job
    assert (done.state, done.error.reason, done.attempts) == (FAILED, "DEADLINE_EXCEEDED", 1)
    assert done.finished_at.ToMilliseconds() - done.deadline_at.ToMilliseconds() < 500
    assert house.worker.steps[job.id] <= 11
    assert (await finish(house.stubs, (await submit_without(house.stubs)).id)).state == job_pb2.JOB_STATE_SUCCEEDED


async def test_a_job_whose_model_loads_for_too_long_fails_at_once(house: House) -> None:
    house.worker.load_s = 1.5
    job = await submit(house.stubs, 0.5)
    done = await finish(house.stubs, job.id)
    assert (done.state, done.error.reason) == (FAILED, "DEADLINE_EXCEEDED")
    assert done.finished_at.ToMilliseconds() - done.deadline_at.ToMilliseconds() < 500
    house.worker.load_s = 0.01
    assert (await finish(house.stubs, (await submit_without(house.stubs)).id)).state == job_pb2.JOB_STATE_SUCCEEDED


async def test_planner_and_worker_are_told_how_much_time_is_left(house: House) -> None:
    house.worker.step_s = 0.05
    done = await finish(house.stubs, (await submit(house.stubs, 5.0)).id)
    assert done.state == job_pb2.JOB_STATE_SUCCEEDED
    (asked_s,), (ran_s,) = house.planner.limits_s, house.worker.limits_s
    assert asked_s is not None
    assert 3.0 < asked_s <= 5.0
    assert ran_s is not None
    assert ran_s < 5.0 + 10.1
    await finish(house.stubs, (await submit_without(house.stubs)).id)
    assert house.worker.limits_s[1] is None or house.worker.limits_s[1] > 1e6


async def test_a_planner_that_takes_longer_than_the_deadline_blames_nobody(house: House) -> None:
    house.planner.plan_s = 3.0
    done = await finish(house.stubs, (await submit(house.stubs, 0.5)).id)
    assert (done.state, done.error.reason) == (FAILED, "DEADLINE_EXCEEDED")
    house.planner.plan_s = 0.0
    began = time.monotonic()
    assert (await finish(house.stubs, (await submit_without(house.stubs)).id)).state == job_pb2.JOB_STATE_SUCCEEDED
    assert time.monotonic() - began < 2.0


async def test_generate_keeps_a_deadline_too(house: House) -> None:
    house.worker.step_s = 0.1
    message = generation_service_pb2.GenerateRequest(request=a_request(steps=50), terms=terms_of(0.6))
    answers = [answer async for answer in house.stubs.jobs.Generate(message, timeout=T)]
    assert answers[-1].event.job.error.reason == "DEADLINE_EXCEEDED"
    assert answers[0].event.job.terms == answers[-1].event.job.terms == terms_of(0.6)


async def test_a_job_that_is_done_in_time_keeps_its_terms_and_nothing_else_of_them(house: House) -> None:
    done = await finish(house.stubs, (await submit(house.stubs, 30.0)).id)
    assert done.state == job_pb2.JOB_STATE_SUCCEEDED
    assert done.terms == terms_of(30.0)


async def test_another_deadline_under_the_same_request_id_is_another_request(house: House) -> None:
    request_id = str(uuid.uuid4())
    job = await submit(house.stubs, 30.0, request_id)
    assert (await submit(house.stubs, 30.0, request_id)).id == job.id
    other = generation_service_pb2.SubmitJobRequest(request=a_request(), request_id=request_id, terms=terms_of(31.0))
    expected = (grpc.StatusCode.ALREADY_EXISTS, "REQUEST_ID_REUSED")
    assert await code_of(house.stubs.jobs.SubmitJob(other, timeout=T)) == expected


@pytest.mark.parametrize(("seconds", "nanos"), [(0, 0), (-1, 0), (10**11, 0), (0, 10), (2**62, 0)])
async def test_a_deadline_that_can_not_be_kept_is_refused(house: House, seconds: int, nanos: int) -> None:
    terms = job_pb2.JobTerms()
    terms.deadline.seconds, terms.deadline.nanos = seconds, nanos
    message = generation_service_pb2.SubmitJobRequest(request=a_request(), terms=terms)
    expected = (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_REQUEST")
    assert await code_of(house.stubs.jobs.SubmitJob(message, timeout=T)) == expected


async def test_without_any_worker_a_deadline_is_kept(tmp_path: Path) -> None:
    async with serve_gateway(settings_for(tmp_path, "127.0.0.1:9", "127.0.0.1:9")) as gateway:
        jobs = await asyncio.gather(*(submit(gateway.stubs, 0.4 + 0.05 * number) for number in range(5)))
        for done in await asyncio.gather(*(finish(gateway.stubs, job.id) for job in jobs)):
            assert (done.state, done.error.reason) == (FAILED, "DEADLINE_EXCEEDED")
            assert 0 <= done.finished_at.ToMilliseconds() - done.deadline_at.ToMilliseconds() < 300
