"""Gateways are killed and workers cut off at random while jobs run: all that was accepted ends once, and well."""

from __future__ import annotations

import asyncio
import contextlib
import random
import uuid
from pathlib import Path

import grpc
import pytest

from darkroom.v1 import generation_service_pb2, job_pb2
from tests.contract.house import T, a_request
from tests.contract.test_gateway_failures import process_settings
from tests.fakes.gateway import GatewayProcess, start_gateway
from tests.fakes.planner import FakePlanner, serve_planner
from tests.fakes.redis import open_jobs, serve_redis
from tests.fakes.worker import FakeWorker, WorkerServer, serve_worker

pytestmark = pytest.mark.redis
NUM_JOBS = 60
NEMESIS_S = 8.0


class Shop:
    """Two gateways that may be replaced at any time."""

    def __init__(self, settings: dict[str, str], log: Path) -> None:
        self.gateways: list[GatewayProcess] = []
        self._settings = settings
        self._log = log

    async def open(self) -> None:
        for _ in range(2):
            self.gateways.append(await start_gateway(self._settings, self._log))

    async def replace(self, place: int) -> None:
        self.gateways[place].kill()
        await self.gateways[place].close()
        self.gateways[place] = await start_gateway(self._settings, self._log)

    async def close(self) -> None:
        for gateway in self.gateways:
            await gateway.stop()
            await gateway.close()

    async def submit(self, dice: random.Random) -> str:
        """Submits until somebody answers OK; one request id is one job."""
        request_id = str(uuid.UUID(int=dice.getrandbits(128)))
        message = generation_service_pb2.SubmitJobRequest(request=a_request(steps=4), request_id=request_id)
        while True:
            with contextlib.suppress(grpc.aio.AioRpcError, grpc.aio.UsageError):
                stub = dice.choice(self.gateways).stubs.jobs
                return (await stub.SubmitJob(message, timeout=2)).job.id
            await asyncio.sleep(0.1)


async def trouble(shop: Shop, servers: list[WorkerServer], dice: random.Random) -> None:
    """Something bad every half second."""
    for _ in range(int(NEMESIS_S / 0.8)):
        await asyncio.sleep(0.4)
        if dice.random() < 0.5:
            await shop.replace(dice.randrange(2))
            continue
        server = dice.choice(servers)
        await server.cut()
        if dice.random() < 0.5:
            server.worker.forget_everything()
        await asyncio.sleep(0.4)
        await server.start()


@pytest.mark.timeout(120)
async def test_nothing_is_lost_and_nothing_ends_twice(tmp_path: Path) -> None:
    dice = random.Random(7)
    workers = [FakeWorker(f"fake-{number}", step_s=0.05) for number in range(4)]
    async with contextlib.AsyncExitStack() as stack:
        redis = await stack.enter_async_context(serve_redis(tmp_path))
        servers = [await stack.enter_async_context(serve_worker(worker)) for worker in workers]
        planner = await stack.enter_async_context(serve_planner(FakePlanner()))
        jobs, client = await stack.enter_async_context(open_jobs(redis.url))
        addresses = ",".join(server.address for server in servers)
        settings = process_settings(tmp_path, addresses, planner) | {"DARKROOM_REDIS_URL": redis.url}
        shop = Shop(settings, tmp_path / "log")
        stack.push_async_callback(shop.close)
        await shop.open()
        nemesis = asyncio.create_task(trouble(shop, servers, dice))
        ids = []
        for _ in range(NUM_JOBS):
            ids.append(await shop.submit(dice))
            await asyncio.sleep(NEMESIS_S / NUM_JOBS)
        await nemesis
        assert len(set(ids)) == NUM_JOBS
        async with asyncio.timeout(3 * T):
            while await jobs.newest([job_pb2.JOB_STATE_QUEUED, job_pb2.JOB_STATE_RUNNING], "", 500):
                await asyncio.sleep(0.1)
        for job_id in ids:
            job = await jobs.get(job_id)
            assert job.state == job_pb2.JOB_STATE_SUCCEEDED, job
            assert await client.hget(f"darkroom:job:{job_id}", "terminal_writes") == b"1"
            files = list((tmp_path / "data" / "outputs" / job_id[-2:]).glob(f"{job_id}-*"))
            assert [path.name for path in files] == [f"{job_id}-{await jobs.file_token(job_id)}"]
        assert await client.zcard("darkroom:leases") == 0
        assert not await client.keys("darkroom:worker:*")
