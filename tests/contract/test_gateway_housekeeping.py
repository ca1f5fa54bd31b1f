"""Room is given back: by age, by size, and from files that nobody names; never from a job that is alive."""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from darkroom.storage import open_store
from darkroom.v1 import job_pb2
from services.gateway.config import GatewaySettings
from services.gateway.housekeeping import expire, sweep
from services.gateway.inputs import Inputs
from services.gateway.outputs import ORPHAN_AGE_S, Outputs
from services.gateway.running.resources import Resources
from services.gateway.store.bell import Bell
from services.gateway.workers.client import PlannerClient
from services.gateway.workers.pool import Pool
from tests.contract.house import download, finish, settings_for, submit, until_state
from tests.fakes.gateway import Gateway, serve_gateway
from tests.fakes.planner import FakePlanner, serve_planner
from tests.fakes.redis import open_jobs, serve_redis
from tests.fakes.worker import FakeWorker, serve_worker

pytestmark = pytest.mark.redis


class Estate:
    """A gateway, and the same jobs and files as its housekeeping has them."""

    def __init__(self, gateway: Gateway, worker: FakeWorker, means: Resources) -> None:
        self.gateway = gateway
        self.worker = worker
        self.means = means

    @property
    def files(self) -> set[str]:
        folder = self.gateway.settings.data_dir / "outputs"
        return {path.name for path in folder.rglob("*") if path.is_file() and path.name != "store-id"}

    def age_all_files(self) -> None:
        long_ago = time.time() - 2 * ORPHAN_AGE_S
        for path in (self.gateway.settings.data_dir / "outputs").rglob("*"):
            if path.is_file():
                os.utime(path, (long_ago, long_ago))


@pytest.fixture
async def estate(tmp_path: Path) -> AsyncIterator[Estate]:
    worker = FakeWorker(file_bytes=1000)
    async with (
        serve_redis(tmp_path) as redis,
        serve_worker(worker) as server,
        serve_planner(FakePlanner()) as planner,
        serve_gateway(
            settings_for(tmp_path, server.address, planner, redis_url=redis.url, gateway_retention_bytes=2500)
        ) as gateway,
        open_jobs(redis.url) as (jobs, client),
    ):
        settings: GatewaySettings = gateway.settings
        planner_client = PlannerClient(planner)
        store = open_store(settings.data_dir / "outputs")
        outputs, inputs = Outputs(store), Inputs(store)
        means = Resources(settings, jobs, Bell(client), outputs, inputs, planner_client, Pool("127.0.0.1:9"))
        yield Estate(gateway, worker, means)
        await planner_client.close()


async def test_the_oldest_outputs_go_when_room_is_short_and_a_live_job_keeps_all_it_has(estate: Estate) -> None:
    stubs = estate.gateway.stubs
    ended = [(await finish(stubs, (await submit(stubs)).id)).id for _ in range(4)]
    await expire(estate.means)
    assert len(estate.files) == 4, "what has just ended is spared"
    estate.worker.step_s = 0.2
    running = await submit(stubs)
    await until_state(stubs, running.id, job_pb2.JOB_STATE_RUNNING)
    await expire(estate.means, spared_s=0)
    assert {name.partition("-")[0] for name in estate.files} - {running.id} == set(ended[2:])
    assert (await finish(stubs, running.id)).state == job_pb2.JOB_STATE_SUCCEEDED
    for job_id in (*ended[2:], running.id):
        assert len((await download(stubs, job_id))[1]) == 1000


async def test_a_sweep_takes_what_no_job_names_and_nothing_else(estate: Estate) -> None:
    stubs = estate.gateway.stubs
    kept = (await finish(stubs, (await submit(stubs)).id)).id
    folder = estate.gateway.settings.data_dir / "outputs"
    counter = int(next(iter(estate.files)).partition("-")[2])
    orphan = kept[:-1] + ("0" if kept[-1] != "0" else "1")
    for job_id, number in ((kept, counter + 500), (orphan, 3)):
        path = folder / job_id[-2:] / f"{job_id}-{number}"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"left by a writer that woke up too late")
    (folder / ".drafts" / f"{kept}-9").write_bytes(b"half")
    await sweep(estate.means)
    assert len(estate.files) == 4, "young files may be about to be named"
    estate.age_all_files()
    await sweep(estate.means)
    assert estate.files == {f"{kept}-{counter}"}
    assert len((await download(stubs, kept))[1]) == 1000
