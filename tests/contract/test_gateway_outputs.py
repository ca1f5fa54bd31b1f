"""Outputs in a bucket: downloaded through any gateway, given back, swept; and what happens while the bucket is away."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import grpc
import pytest

from darkroom.rpc.errors import DarkroomError
from darkroom.rpc.serving import Health
from darkroom.storage import Store, open_store
from darkroom.v1 import generation_pb2, job_pb2
from darkroom.v1.generation_service_pb2 import DownloadOutputRequest
from services.gateway.application import open_gateway
from services.gateway.housekeeping import drop_strays, expire, sweep
from services.gateway.inputs import Inputs
from services.gateway.outputs import Outputs
from services.gateway.outputs.naming import claim_of, name_of
from services.gateway.running.resources import Resources
from services.gateway.store.bell import Bell
from services.gateway.store.jobs import Jobs
from services.gateway.store.record import Claim
from services.gateway.workers.client import PlannerClient
from services.gateway.workers.pool import Pool
from tests.contract.house import code_of, download, finish, settings_for, submit, until_state
from tests.fakes.gateway import serve_gateway
from tests.fakes.planner import FakePlanner, serve_planner
from tests.fakes.redis import open_jobs, serve_redis
from tests.fakes.s3 import s3_bucket
from tests.fakes.worker import FakeWorker, picture, serve_worker

pytestmark = pytest.mark.redis
SUCCEEDED = job_pb2.JOB_STATE_SUCCEEDED
BIG = 600_000


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    with s3_bucket() as url:
        yield url


@pytest.fixture(params=["directory", "bucket"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "directory":
        return str(tmp_path / "pictures")
    return f"{request.getfixturevalue('bucket')}/{secrets.token_hex(4)}"


@contextlib.asynccontextmanager
async def two_gateways(folder: Path, place: str, worker: FakeWorker, **more: object) -> AsyncIterator[tuple]:  # type: ignore[type-arg]
    """Two gateways of one Redis and one store, and the jobs and files as they have them."""
    async with (
        serve_redis(folder) as redis,
        serve_worker(worker) as server,
        serve_planner(FakePlanner()) as planner,
        open_jobs(redis.url) as (jobs, client),
    ):
        settings = settings_for(folder, server.address, planner, redis_url=redis.url, outputs=place, **more)
        async with serve_gateway(settings) as first, serve_gateway(settings) as second:
            planner_client = PlannerClient(planner)
            outputs, inputs = Outputs(open_store(place)), Inputs(open_store(place))
            means = Resources(settings, jobs, Bell(client), outputs, inputs, planner_client, Pool("127.0.0.1:9"))
            try:
                yield first, second, means
            finally:
                await planner_client.close()


def claims(store: Store) -> set[tuple[str, int]]:
    return {claim for file in store.list() if (claim := claim_of(file.key))}


async def test_a_picture_is_downloaded_through_any_gateway_and_goes_on_from_any_offset(
    tmp_path: Path, place: str
) -> None:
    async with two_gateways(tmp_path, place, FakeWorker(file_bytes=BIG)) as (first, second, _):
        job = await submit(first.stubs)
        assert (await finish(first.stubs, job.id)).state == SUCCEEDED
        whole = picture(job.request, BIG)
        for offset in (0, 1, 262_144, BIG - 1, BIG):
            assert (await download(second.stubs, job.id, offset))[1] == whole[offset:]


async def test_a_late_gateway_changes_nothing_and_its_orphan_is_deleted(tmp_path: Path, place: str) -> None:
    """While a gateway is held at its commit, the job is given to somebody else, who finishes it."""
    async with two_gateways(tmp_path, place, FakeWorker(step_s=0.05), gateway_lease_s=60.0) as (first, _, means):
        jobs: Jobs = means.jobs
        job = await submit(first.stubs, steps=10)
        await until_state(first.stubs, job.id, job_pb2.JOB_STATE_RUNNING)
        await jobs._client.zadd("darkroom:leases", {job.id: 0})
        claim = await jobs.adopt(60.0)
        assert isinstance(claim, Claim)
        await jobs.succeed(claim, generation_pb2.Output(content_type="image/png"))
        assert (await finish(first.stubs, job.id)).output.content_type == "image/png"
        await asyncio.sleep(1.5)
        assert await jobs._client.hget(f"darkroom:job:{job.id}", "terminal_writes") == b"1"
        assert claims(open_store(place)) == set()


async def test_what_a_dead_gateway_stored_is_deleted_by_whoever_finishes_its_job(tmp_path: Path, place: str) -> None:
    async with two_gateways(tmp_path, place, FakeWorker(step_s=0.05), gateway_lease_s=60.0) as (first, _, means):
        job = await submit(first.stubs, steps=40)
        await until_state(first.stubs, job.id, job_pb2.JOB_STATE_RUNNING)
        earlier = await means.jobs.file_token(job.id)
        await means.jobs._client.zadd("darkroom:leases", {job.id: 0})
        open_store(place).create(name_of(job.id, earlier), b"stored by a gateway that is dead")
        assert (await finish(first.stubs, job.id)).state == SUCCEEDED
        newest = await means.jobs.file_token(job.id)
        assert newest > earlier
        assert claims(open_store(place)) == {(job.id, newest)}


async def test_what_a_late_gateway_stores_after_its_job_has_ended_is_a_stray_and_goes(
    tmp_path: Path, place: str
) -> None:
    async with two_gateways(tmp_path, place, FakeWorker(step_s=0.05), gateway_lease_s=60.0) as (first, _, means):
        job = await submit(first.stubs, steps=10)
        await until_state(first.stubs, job.id, job_pb2.JOB_STATE_RUNNING)
        earlier = await means.jobs.file_token(job.id)
        await means.jobs._client.zadd("darkroom:leases", {job.id: 0})
        assert (await finish(first.stubs, job.id)).state == SUCCEEDED
        store, named = open_store(place), {(job.id, await means.jobs.file_token(job.id))}
        store.create(name_of(job.id, earlier), b"by a gateway that is killed before it hears")
        await drop_strays(means)
        assert claims(store) == {*named, (job.id, earlier)}, "whoever is late may do it himself for a while"
        await drop_strays(means, age_s=0)
        assert claims(store) == named
        assert await means.jobs.strays(0, 10) == {}


async def test_room_is_given_back_and_orphans_are_swept(tmp_path: Path, place: str) -> None:
    async with two_gateways(tmp_path, place, FakeWorker(file_bytes=1000), gateway_retention_bytes=2500) as (
        first,
        _,
        means,
    ):
        ended = [(await finish(first.stubs, (await submit(first.stubs)).id)).id for _ in range(4)]
        store = open_store(place)
        await expire(means, spared_s=0)
        assert {job_id for job_id, _ in claims(store)} == set(ended[2:])
        kept = claims(store)
        open_store(place).create(name_of(ended[0], 7), b"stored by somebody who never said so")
        await sweep(means)
        assert claims(store) == {*kept, (ended[0], 7)}, "young files may be about to be named"
        await asyncio.sleep(1.1)
        await sweep(means, age_s=0.1)
        assert claims(store) == kept


async def test_a_gateway_with_another_store_is_refused(tmp_path: Path, place: str, bucket: str) -> None:
    async with two_gateways(tmp_path, place, FakeWorker()) as (first, _, _):
        for other in (str(tmp_path / "elsewhere"), f"{bucket}/elsewhere"):
            settings = first.settings.model_copy(update={"outputs": other})
            with pytest.raises(DarkroomError, match="another store"):
                async with open_gateway(settings, None, Health([])):  # type: ignore[arg-type]
                    pass


@pytest.mark.parametrize("outputs", ["ftp://host/folder", "s3://", "s3://no-such-bucket-here/folder", "/dev/null/x"])
async def test_outputs_that_can_not_be_used_are_named_at_the_start(tmp_path: Path, bucket: str, outputs: str) -> None:
    settings = settings_for(tmp_path, "127.0.0.1:9", "127.0.0.1:9", outputs=outputs)
    with pytest.raises(DarkroomError, match="DARKROOM_OUTPUTS"):
        async with open_gateway(settings, None, Health([])):  # type: ignore[arg-type]
            pass


async def test_while_the_bucket_is_away_jobs_wait_and_when_it_is_back_they_are_made(
    tmp_path: Path,
) -> None:
    trouble: set[str] = set()
    with s3_bucket(is_away=lambda: bool(trouble)) as url:
        async with two_gateways(tmp_path, url, FakeWorker()) as (first, _, means):
            early = await finish(first.stubs, (await submit(first.stubs)).id)
            trouble.add("away")
            ids = [(await submit(first.stubs)).id for _ in range(4)]
            reading = await code_of(first.stubs.jobs.DownloadOutput(DownloadOutputRequest(job_id=early.id), timeout=20))
            assert reading == (grpc.StatusCode.UNAVAILABLE, "OUTPUTS_UNAVAILABLE")
            await asyncio.sleep(3.0)
            jobs = [await means.jobs.get(job_id) for job_id in ids]
            assert {job.state for job in jobs} <= {job_pb2.JOB_STATE_QUEUED, job_pb2.JOB_STATE_RUNNING}
            # Each of the two gateways took one job until it knew; the others were not touched.
            assert sum(len(job.failed_attempts) for job in jobs) <= 2
            trouble.clear()
            assert len((await download(first.stubs, early.id))[1]) == early.output.size_bytes
            ended = [await finish(first.stubs, job_id) for job_id in ids]
            assert {job.state for job in ended} == {SUCCEEDED}
