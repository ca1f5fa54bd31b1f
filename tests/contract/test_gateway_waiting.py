"""What keeps jobs from being made and is not their fault: they wait, say why, and go on; none starts over for ever."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from darkroom.v1 import job_pb2
from services.gateway.store.record import Claim
from tests.contract.house import T, finish, get, settings_for, submit, until_state
from tests.fakes.gateway import serve_gateway
from tests.fakes.planner import FakePlanner, serve_planner
from tests.fakes.redis import open_jobs, serve_redis
from tests.fakes.worker import FakeWorker, serve_worker

pytestmark = pytest.mark.redis
SUCCEEDED = job_pb2.JOB_STATE_SUCCEEDED
AWAY_S = 4.0


async def test_without_a_planner_jobs_wait_with_growing_pauses_say_why_and_go_on_when_it_is_back(
    tmp_path: Path,
) -> None:
    async with serve_planner(FakePlanner()) as address:
        port = int(address.rpartition(":")[2])
    async with (
        serve_redis(tmp_path) as redis,
        open_jobs(redis.url) as (_, client),
        serve_worker(FakeWorker()) as server,
        serve_gateway(settings_for(tmp_path, server.address, address, redis_url=redis.url)) as gateway,
    ):
        ids = [(await submit(gateway.stubs)).id for _ in range(3)]
        await asyncio.sleep(AWAY_S)
        # Pauses of 0.2, 0.4, 0.8, 1.6 s…: a worker without them would have claimed hundreds of times.
        assert 2 <= int(await client.get("darkroom:token")) <= 8
        jobs = [await until_state(gateway.stubs, job_id, job_pb2.JOB_STATE_QUEUED) for job_id in ids]
        assert {job.attempts for job in jobs} == {0}
        assert all(f"planner {address} does not answer" in job.progress.detail for job in jobs)
        async with serve_planner(FakePlanner(), port):
            ended = [await finish(gateway.stubs, job_id) for job_id in ids]
        assert {(job.state, job.attempts, len(job.failed_attempts)) for job in ended} == {(SUCCEEDED, 1, 0)}
        assert (await get(gateway.stubs, ids[0])).progress.detail == ""


@pytest.mark.parametrize(("num_deaths", "num_charged"), [(1, 0), (2, 1)])
async def test_a_run_that_gateways_died_of_in_silence_is_charged_from_the_second_time_on(
    tmp_path: Path, num_deaths: int, num_charged: int
) -> None:
    """Gateways claim or adopt a job and are gone with the worker before anything of its run is heard."""
    worker = FakeWorker()
    async with (
        serve_redis(tmp_path) as redis,
        open_jobs(redis.url) as (jobs, client),
        serve_planner(FakePlanner()) as planner,
        serve_worker(worker) as server,
    ):
        async with serve_gateway(settings_for(tmp_path, "127.0.0.1:9", planner, redis_url=redis.url)) as lonely:
            job = await submit(lonely.stubs)
        assert isinstance(await jobs.claim(worker.worker_id, "", [], 10, 60), Claim)
        for _ in range(num_deaths - 1):
            await client.zadd("darkroom:leases", {job.id: 0})
            assert isinstance(await jobs.adopt(60), Claim)
        await client.zadd("darkroom:leases", {job.id: 0})
        async with serve_gateway(settings_for(tmp_path, server.address, planner, redis_url=redis.url)) as gateway:
            done = await asyncio.wait_for(finish(gateway.stubs, job.id), T)
        assert done.state == SUCCEEDED, done.error
        assert done.attempts == 1 + num_charged
        assert [attempt.error.reason for attempt in done.failed_attempts] == ["WORKER_LOST"] * num_charged
