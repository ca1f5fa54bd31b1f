"""What the gateway does when something dies, hangs, lies or is cut off: nothing is lost, nothing is told twice."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from darkroom.v1 import generation_service_pb2, job_pb2
from tests.contract.house import (
    T,
    a_request,
    check_truth,
    code_of,
    download,
    finish,
    get,
    settings_for,
    submit,
    until_state,
    watch,
)
from tests.fakes.gateway import GatewayProcess, serve_gateway, start_gateway
from tests.fakes.planner import FakePlanner, serve_planner
from tests.fakes.redis import serve_redis
from tests.fakes.worker import FakeWorker, picture, serve_worker

pytestmark = pytest.mark.redis
SUCCEEDED = job_pb2.JOB_STATE_SUCCEEDED
RUNNING = job_pb2.JOB_STATE_RUNNING


@contextlib.asynccontextmanager
async def one_worker(folder: Path, worker: FakeWorker, **settings: object) -> AsyncIterator[tuple]:  # type: ignore[type-arg]
    """A gateway in this process around one worker."""
    planner = FakePlanner()
    async with (
        serve_worker(worker) as server,
        serve_planner(planner) as address,
        serve_gateway(settings_for(folder, server.address, address, **settings)) as gateway,
    ):
        yield gateway, server, planner


async def test_an_engine_that_dies_once_costs_an_attempt(tmp_path: Path) -> None:
    async with one_worker(tmp_path, FakeWorker()) as (gateway, _, _):
        job = await submit(gateway.stubs, "dies once")
        events = await watch(gateway.stubs, job.id)
        check_truth(events)
        assert (events[-1].job.state, events[-1].job.attempts) == (SUCCEEDED, 2)


async def test_a_model_that_is_gone_when_a_run_has_its_turn_is_a_lost_worker(tmp_path: Path) -> None:
    async with one_worker(tmp_path, FakeWorker()) as (gateway, _, _):
        done = await finish(gateway.stubs, (await submit(gateway.stubs, "forgets once")).id)
        assert (done.state, done.attempts) == (SUCCEEDED, 2), done.error
        assert [attempt.error.reason for attempt in done.failed_attempts] == ["WORKER_LOST"]


async def test_a_job_that_kills_its_engine_twice_is_poison_and_the_next_one_works(tmp_path: Path) -> None:
    async with one_worker(tmp_path, FakeWorker()) as (gateway, _, _):
        done = await finish(gateway.stubs, (await submit(gateway.stubs, "dies")).id)
        assert (done.state, done.error.reason, done.attempts) == (job_pb2.JOB_STATE_FAILED, "POISON", 2)
        assert done.error.metadata["last_reason"] == "ENGINE_DIED"
        assert done.error.metadata["signal"] == "9"
        assert (await finish(gateway.stubs, (await submit(gateway.stubs)).id)).state == SUCCEEDED


async def test_out_of_memory_takes_the_plans_fallback_in_the_same_attempt(tmp_path: Path) -> None:
    worker = FakeWorker()
    async with one_worker(tmp_path, worker) as (gateway, _, _):
        events = await watch(gateway.stubs, (await submit(gateway.stubs, "hogs")).id)
        check_truth(events)
        assert (events[-1].job.state, events[-1].job.attempts) == (SUCCEEDED, 1)
        assert len(worker.loads) == 2


async def test_a_file_that_is_not_what_was_announced_fails_the_job(tmp_path: Path) -> None:
    async with one_worker(tmp_path, FakeWorker()) as (gateway, _, _):
        done = await finish(gateway.stubs, (await submit(gateway.stubs, "lies")).id)
        assert (done.state, done.error.reason) == (job_pb2.JOB_STATE_FAILED, "BROKEN_OUTPUT")
        stored = [path.name for path in (tmp_path / "data" / "outputs").rglob("*") if path.is_file()]
        assert stored == ["store-id"]


async def test_what_does_not_fit_or_can_not_be_got_fails_with_the_reason(tmp_path: Path) -> None:
    worker = FakeWorker()
    async with one_worker(tmp_path, worker) as (gateway, _, planner):
        planner.never_fits = True
        done = await finish(gateway.stubs, (await submit(gateway.stubs)).id)
        assert (done.state, done.error.reason) == (job_pb2.JOB_STATE_FAILED, "NOTHING_FITS")
        assert "needs 2 bytes of 1" in done.error.message
        worker.inspection_problem = "the repository is gated and there is no token"
        done = await finish(gateway.stubs, (await submit(gateway.stubs)).id)
        assert (done.state, done.error.reason) == (job_pb2.JOB_STATE_FAILED, "SOURCE_REFUSED")


async def test_a_worker_that_hands_back_its_job_burns_no_attempt_and_another_takes_it(tmp_path: Path) -> None:
    first, second = FakeWorker("first", step_s=0.1), FakeWorker("second")
    async with serve_worker(first) as one, serve_worker(second) as two, serve_planner(FakePlanner()) as planner:
        settings = settings_for(tmp_path, one.address, planner)
        settings = settings.model_copy(update={"gateway_workers": f"{one.address},{two.address}"})
        second.is_draining = True
        async with serve_gateway(settings) as gateway:
            job = await submit(gateway.stubs, steps=30)
            await until_state(gateway.stubs, job.id, RUNNING)
            second.is_draining = False
            await asyncio.sleep(0.5)
            first.drain()
            async with asyncio.timeout(1.5):
                await until_state(gateway.stubs, job.id, SUCCEEDED)
            done = await get(gateway.stubs, job.id)
            assert (done.worker_id, done.attempts) == ("second", 1)


async def test_a_short_cut_between_gateway_and_worker_computes_no_step_twice(tmp_path: Path) -> None:
    worker = FakeWorker(step_s=0.05)
    async with one_worker(tmp_path, worker, gateway_worker_lost_s=5.0) as (gateway, server, _):
        job = await submit(gateway.stubs, steps=20)
        await until_state(gateway.stubs, job.id, RUNNING)
        await asyncio.sleep(0.3)
        await server.cut()
        await asyncio.sleep(0.3)
        await server.start()
        events = await watch(gateway.stubs, job.id)
        check_truth(events)
        assert (events[-1].job.state, events[-1].job.attempts) == (SUCCEEDED, 1)
        assert (worker.steps[job.id], worker.starts[job.id]) == (20, 1)


async def test_a_lost_worker_costs_an_attempt_and_the_job_runs_elsewhere(tmp_path: Path) -> None:
    first, second = FakeWorker("first", step_s=0.1), FakeWorker("second")
    async with serve_worker(first) as one, serve_worker(second) as two, serve_planner(FakePlanner()) as planner:
        settings = settings_for(tmp_path, f"{one.address},{two.address}", planner)
        second.is_draining = True
        async with serve_gateway(settings) as gateway:
            job = await submit(gateway.stubs, steps=30)
            await until_state(gateway.stubs, job.id, RUNNING)
            second.is_draining = False
            await one.cut()
            done = await finish(gateway.stubs, job.id)
            assert (done.state, done.worker_id, done.attempts) == (SUCCEEDED, "second", 2)


async def test_a_restarted_worker_that_forgot_its_run_is_a_lost_worker(tmp_path: Path) -> None:
    worker = FakeWorker(step_s=0.05)
    async with one_worker(tmp_path, worker) as (gateway, server, _):
        job = await submit(gateway.stubs, steps=20)
        await until_state(gateway.stubs, job.id, RUNNING)
        await asyncio.sleep(0.2)
        await server.cut()
        worker.forget_everything()
        await server.start()
        done = await finish(gateway.stubs, job.id)
        assert (done.state, done.attempts) == (SUCCEEDED, 2)


async def test_a_worker_that_keeps_a_silent_engine_alive_loses_the_job(tmp_path: Path) -> None:
    """The plan's budgets are 2 s here, the slack half a second; heartbeats alone are no progress."""
    worker = FakeWorker()
    async with one_worker(tmp_path, worker, gateway_max_lost=1) as (gateway, _, _):
        async with asyncio.timeout(8):
            done = await finish(gateway.stubs, (await submit(gateway.stubs, "hangs")).id)
        assert (done.state, done.error.reason) == (job_pb2.JOB_STATE_FAILED, "WORKER_LOST")
        assert done.error.metadata["last_reason"] == "ENGINE_HUNG"


async def test_a_slow_step_within_its_budget_keeps_the_lease(tmp_path: Path) -> None:
    """A step of 1.5 s under a lease of 0.5 s: three leases pass in silence, and the job is still ours."""
    worker = FakeWorker(step_s=1.5)
    async with one_worker(tmp_path, worker, gateway_lease_s=0.5) as (gateway, _, _):
        done = await finish(gateway.stubs, (await submit(gateway.stubs, steps=2)).id)
        assert (done.state, done.attempts, worker.starts[done.id]) == (SUCCEEDED, 1, 1)


async def test_redis_killed_and_back_loses_nothing(tmp_path: Path) -> None:
    worker = FakeWorker(step_s=0.1)
    async with (
        serve_redis(tmp_path) as redis,
        serve_worker(worker) as server,
        serve_planner(FakePlanner()) as planner,
        serve_gateway(
            settings_for(tmp_path, server.address, planner, redis_url=redis.url, gateway_lease_s=6.0)
        ) as gateway,
    ):
        jobs = [await submit(gateway.stubs, steps=10) for _ in range(3)]
        await until_state(gateway.stubs, jobs[0].id, RUNNING)
        await redis.kill()
        request = generation_service_pb2.SubmitJobRequest(request=a_request())
        expected = (grpc.StatusCode.UNAVAILABLE, "STORE_UNAVAILABLE")
        assert await code_of(gateway.stubs.jobs.SubmitJob(request, timeout=T)) == expected
        await until_health(gateway.health, is_ready=False)
        await redis.start()
        await until_health(gateway.health, is_ready=True)
        for job in jobs:
            done = await finish(gateway.stubs, job.id)
            assert (done.state, done.attempts) == (SUCCEEDED, 1)
            assert worker.starts[job.id] == 1
        assert (await finish(gateway.stubs, (await submit(gateway.stubs)).id)).state == SUCCEEDED


async def until_health(health: object, *, is_ready: bool) -> None:
    kinds = health_pb2.HealthCheckResponse
    wanted = kinds.SERVING if is_ready else kinds.NOT_SERVING
    async with asyncio.timeout(T):
        while True:
            request = health_pb2.HealthCheckRequest(service="darkroom.v1.GenerationService")
            if (await health.servicer.Check(request, None)).status == wanted:  # type: ignore[attr-defined]
                return
            await asyncio.sleep(0.05)


async def test_a_gateway_killed_mid_job_is_replaced_and_no_step_is_computed_twice(tmp_path: Path) -> None:
    """The embedded Redis dies with its gateway and finds its data again."""
    worker = FakeWorker(step_s=0.1, file_bytes=600_000)
    async with serve_worker(worker) as server, serve_planner(FakePlanner()) as planner:
        settings = process_settings(tmp_path, server.address, planner)
        gateway = await start_gateway(settings, tmp_path / "log")
        job = await submit(gateway.stubs, steps=20)
        waiting = await submit(gateway.stubs)
        await until_state(gateway.stubs, job.id, RUNNING)
        await asyncio.sleep(0.6)
        seen = (await get(gateway.stubs, job.id)).last_sequence
        gateway.kill()
        await gateway.close()
        gateway = await start_gateway(settings, tmp_path / "log")
        try:
            events = await watch(gateway.stubs, job.id, after=seen)
            check_truth(events)
            done = events[-1].job
            assert (done.state, done.attempts) == (SUCCEEDED, 1)
            assert (worker.steps[job.id], worker.starts[job.id]) == (20, 1)
            assert (await download(gateway.stubs, job.id))[1] == picture(done.request, 600_000)
            assert (await finish(gateway.stubs, waiting.id)).state == SUCCEEDED
        finally:
            assert await gateway.stop() == 0
            await gateway.close()


async def test_a_second_gateway_adopts_what_a_killed_one_drove(tmp_path: Path) -> None:
    worker = FakeWorker(step_s=0.1)
    async with (
        serve_redis(tmp_path) as redis,
        serve_worker(worker) as server,
        serve_planner(FakePlanner()) as planner,
    ):
        settings = process_settings(tmp_path, server.address, planner) | {"DARKROOM_REDIS_URL": redis.url}
        first = await start_gateway(settings, tmp_path / "log")
        job = await submit(first.stubs, steps=30)
        await until_state(first.stubs, job.id, RUNNING)
        second = await start_gateway(settings, tmp_path / "log")
        try:
            watching = asyncio.create_task(watch(second.stubs, job.id))
            await asyncio.sleep(0.5)
            first.kill()
            events = await watching
            check_truth(events)
            assert (events[-1].job.state, events[-1].job.attempts) == (SUCCEEDED, 1)
            assert (worker.steps[job.id], worker.starts[job.id]) == (30, 1)
            assert sorted(set(worker.tokens)) == [1, 2]
        finally:
            await first.close()
            await second.stop()
            await second.close()


async def test_a_terminated_gateway_hands_its_job_over_and_cancels_nothing(tmp_path: Path) -> None:
    worker = FakeWorker(step_s=0.2)
    async with (
        serve_redis(tmp_path) as redis,
        serve_worker(worker) as server,
        serve_planner(FakePlanner()) as planner,
    ):
        settings = process_settings(tmp_path, server.address, planner) | {
            "DARKROOM_REDIS_URL": redis.url,
            "DARKROOM_GATEWAY_LEASE_S": "60",
            "DARKROOM_GRACE_S": "2.5",
        }
        first = await start_gateway(settings, tmp_path / "log")
        second = await start_gateway(settings, tmp_path / "log")
        try:
            call = first.stubs.jobs.Generate(
                generation_service_pb2.GenerateRequest(request=a_request(steps=30)), timeout=T
            )
            job_id = (await anext(aiter(call))).event.job.id
            await until_state(first.stubs, job_id, RUNNING)
            stopping = asyncio.create_task(first.stop())
            assert (await code_of(call))[0] in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
            assert await stopping == 0
            done = await finish(second.stubs, job_id)
            assert (done.state, done.attempts) == (SUCCEEDED, 1)
            assert (worker.steps[job_id], worker.starts[job_id]) == (30, 1)
        finally:
            await first.close()
            await second.stop()
            await second.close()


async def test_a_short_job_finishes_while_its_gateway_stops(tmp_path: Path) -> None:
    worker = FakeWorker(step_s=0.1)
    async with serve_worker(worker) as server, serve_planner(FakePlanner()) as planner:
        gateway = await start_gateway(process_settings(tmp_path, server.address, planner), tmp_path / "log")
        try:
            call = gateway.stubs.jobs.Generate(
                generation_service_pb2.GenerateRequest(request=a_request(steps=10)), timeout=T
            )
            first = await anext(aiter(call))
            await until_state(gateway.stubs, first.event.job.id, RUNNING)
            stopping = asyncio.create_task(gateway.stop())
            rest = [answer async for answer in call]
            assert rest[-1].HasField("chunk")
            assert await stopping == 0
        finally:
            await gateway.close()


def process_settings(folder: Path, worker: str, planner: str) -> dict[str, str]:
    return {
        "DARKROOM_GATEWAY_WORKERS": worker,
        "DARKROOM_GATEWAY_PLANNER": planner,
        "DARKROOM_DATA_DIR": str(folder / "data"),
        "DARKROOM_GATEWAY_LEASE_S": "1",
        "DARKROOM_GRACE_S": "5",
    }


async def test_health_is_served_per_service(tmp_path: Path) -> None:
    gateway = await start_gateway(process_settings(tmp_path, "127.0.0.1:9", "127.0.0.1:9"), tmp_path / "log")
    try:
        stub = health_pb2_grpc.HealthStub(gateway.stubs.channel)
        async with asyncio.timeout(T):
            for name in ("", "darkroom.v1.GenerationService", "darkroom.v1.ModelService", "darkroom.v1.ClusterService"):
                request = health_pb2.HealthCheckRequest(service=name)
                while (await stub.Check(request, timeout=T)).status != health_pb2.HealthCheckResponse.SERVING:
                    await asyncio.sleep(0.05)
    finally:
        assert await gateway.stop() == 0
        await gateway.close()


async def test_the_embedded_redis_dies_with_a_killed_gateway(tmp_path: Path) -> None:
    gateway = await start_gateway(process_settings(tmp_path, "127.0.0.1:9", "127.0.0.1:9"), tmp_path / "log")
    pid = embedded_pid(gateway)
    gateway.kill()
    await gateway.close()
    async with asyncio.timeout(T):
        while _is_alive(pid):
            await asyncio.sleep(0.02)


def embedded_pid(gateway: GatewayProcess) -> int:
    """The server's process id: the only child of the gateway."""
    children = Path(f"/proc/{gateway.process.pid}/task/{gateway.process.pid}/children").read_text().split()
    assert len(children) == 1
    return int(children[0])


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def test_the_embedded_redis_comes_back_when_it_is_killed(tmp_path: Path) -> None:
    gateway = await start_gateway(process_settings(tmp_path, "127.0.0.1:9", "127.0.0.1:9"), tmp_path / "log")
    try:
        job = await submit(gateway.stubs)
        os.kill(embedded_pid(gateway), 9)
        async with asyncio.timeout(T):
            while True:
                with contextlib.suppress(grpc.aio.AioRpcError):
                    again = await get(gateway.stubs, job.id)
                    break
                await asyncio.sleep(0.05)
        assert (again.id, again.state) == (job.id, job_pb2.JOB_STATE_QUEUED)
    finally:
        assert await gateway.stop() == 0
        await gateway.close()
