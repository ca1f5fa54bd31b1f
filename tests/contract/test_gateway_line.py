"""The line: bounded, fair, and it says why it does not move."""

from __future__ import annotations

import asyncio
from pathlib import Path

import grpc
import pytest
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from darkroom.rpc.status import from_rpc_error
from darkroom.v1 import (
    generation_pb2,
    generation_service_pb2,
    job_pb2,
    model_service_pb2,
)
from tests.contract.house import House, T, a_request, code_of, finish, get, settings_for, submit, until_state
from tests.fakes.gateway import Stubs, serve_gateway

pytestmark = pytest.mark.redis


async def submit_as(
    stubs: Stubs, tenant: str, priority: job_pb2.JobPriority.ValueType = job_pb2.JOB_PRIORITY_UNSPECIFIED
) -> job_pb2.Job:
    message = generation_service_pb2.SubmitJobRequest(request=a_request(), terms=job_pb2.JobTerms(priority=priority))
    return (await stubs.jobs.SubmitJob(message, timeout=T, metadata=(("x-darkroom-tenant", tenant),))).job


async def test_without_a_worker_jobs_wait_and_say_why_and_loads_are_refused(tmp_path: Path) -> None:
    async with serve_gateway(settings_for(tmp_path, "127.0.0.1:9", "127.0.0.1:9")) as gateway:
        await asyncio.sleep(0.5)
        job = await submit(gateway.stubs)
        assert job.state == job_pb2.JOB_STATE_QUEUED
        assert "no worker answers: 127.0.0.1:9" in (await get(gateway.stubs, job.id)).progress.detail
        call = gateway.stubs.jobs.WatchJob(generation_service_pb2.WatchJobRequest(job_id=job.id), timeout=T)
        told = [await anext(aiter(call)) for _ in range(2)]
        assert told[1].event.progress.phase == generation_pb2.PHASE_QUEUED
        assert "no worker answers" in told[1].event.progress.detail
        load = gateway.stubs.models.LoadModel(model_service_pb2.LoadModelRequest(model="tiny"), timeout=T)
        assert await code_of(load) == (grpc.StatusCode.UNAVAILABLE, "NO_WORKER")
        request = generation_service_pb2.CancelJobRequest(job_id=job.id)
        cancelled = (await gateway.stubs.jobs.CancelJob(request, timeout=T)).job
        assert cancelled.state == job_pb2.JOB_STATE_CANCELLED


async def test_a_full_queue_says_when_to_come_back(tmp_path: Path) -> None:
    settings = settings_for(tmp_path, "127.0.0.1:9", "127.0.0.1:9", gateway_max_queued=3)
    async with serve_gateway(settings) as gateway:
        results = await asyncio.gather(*(submit(gateway.stubs) for _ in range(32)), return_exceptions=True)
        refused = [result for result in results if isinstance(result, grpc.aio.AioRpcError)]
        assert len(refused) == 29
        error = from_rpc_error(refused[0])
        assert (error.reason, error.retry_after_s) == ("QUEUE_FULL", 5.0)
        assert refused[0].code() is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_tenants_take_turns_and_a_high_priority_goes_before_all(house: House) -> None:
    house.worker.step_s = 0.05
    running = await submit(house.stubs)
    await until_state(house.stubs, running.id, job_pb2.JOB_STATE_RUNNING)
    greedy = [await submit_as(house.stubs, "greedy") for _ in range(6)]
    late = [await submit_as(house.stubs, "late") for _ in range(2)]
    urgent = await submit_as(house.stubs, "greedy", job_pb2.JOB_PRIORITY_HIGH)
    ended = [await finish(house.stubs, job.id) for job in (*greedy, *late, urgent)]
    order = [job.id for job in sorted(ended, key=lambda job: job.started_at.ToNanoseconds())]
    assert order[0] == urgent.id
    assert {*order[1:5]} == {greedy[0].id, greedy[1].id, late[0].id, late[1].id}
    assert [job_id for job_id in order if job_id in [job.id for job in greedy]] == [job.id for job in greedy]
    assert {job.tenant for job in ended} == {"greedy", "late"}
    assert running.tenant == "default"


async def test_a_tenants_part_of_the_queue_is_bounded_and_the_others_still_submit(tmp_path: Path) -> None:
    settings = settings_for(tmp_path, "127.0.0.1:9", "127.0.0.1:9", gateway_max_queued_per_tenant=2)
    async with serve_gateway(settings) as gateway:
        for _ in range(2):
            await submit_as(gateway.stubs, "a")
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await submit_as(gateway.stubs, "a")
        error = from_rpc_error(refused.value)
        assert (error.reason, error.facts["subject"], error.retry_after_s) == ("QUEUE_FULL", "tenant:a", 5.0)
        quota = error_details_pb2.QuotaFailure()
        status = rpc_status.from_call(refused.value)
        assert status is not None
        assert any(detail.Unpack(quota) for detail in status.details)
        assert quota.violations[0].subject == "tenant:a"
        await submit_as(gateway.stubs, "b")
