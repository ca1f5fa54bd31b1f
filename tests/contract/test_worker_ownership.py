"""Who has the device, with the real engine on the bundled model: answers at once, ends, and never two at a time."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import signal
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable

import grpc
import psutil
import pytest
import pytest_asyncio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from darkroom.rpc.channels import open_channel
from darkroom.rpc.errors import EngineDiedError, StaleTokenError
from darkroom.v1 import generation_pb2, plan_pb2, worker_pb2
from darkroom.v1 import worker_service_pb2 as messages
from tests.engines.emoji import PROMPT, SEED, SIDE, emoji_plan
from tests.engines.painting import failure_of, paint, serve_painter
from tests.engines.worker_server import WorkerServer, error_of, file_of, item, token

pytestmark = pytest.mark.asyncio(loop_scope="module")
EMPTY, READY = worker_pb2.WORKER_STATE_EMPTY, worker_pb2.WORKER_STATE_READY
GENERATING = worker_pb2.WORKER_STATE_GENERATING
ANSWER_S = 0.1


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def worker(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[WorkerServer]:
    async with serve_painter(tmp_path_factory.mktemp("none"), DARKROOM_WORKER_PROBES=False) as server:
        yield server


@pytest_asyncio.fixture(loop_scope="module")
async def plan(worker: WorkerServer) -> plan_pb2.Plan:
    made = emoji_plan((await worker.status()).device)
    await worker.load(made)
    return made


def apple(job_id: str, steps: int = 8) -> worker_pb2.RunItem:
    return item(job_id, PROMPT, steps=steps, seed=SEED, side=SIDE)


def denoised(events: list[worker_pb2.RunEvent]) -> int:
    """Steps told."""
    return sum(
        event.progress.phase == generation_pb2.PHASE_DENOISING and event.progress.completed > 0 for event in events
    )


async def ask_while(worker: WorkerServer, work: asyncio.Task[list[object]]) -> dict[str, list[float]]:
    """Asks again and again until the work is done; returns how long each kind of answer took."""
    took: dict[str, list[float]] = {}
    async with open_channel(worker.address) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        name = "darkroom.v1.WorkerService"
        await health.Check(health_pb2.HealthCheckRequest(service=name), timeout=5)

        async def cancel() -> None:
            with pytest.raises(grpc.aio.AioRpcError):
                await worker.stub.Cancel(messages.CancelRequest(job_id="nobody"), timeout=5)

        calls: dict[str, Callable[[], Awaitable[object]]] = {
            "status": worker.status,
            "health": lambda: health.Check(health_pb2.HealthCheckRequest(service=name), timeout=5),
            "cancel": cancel,
        }
        while not work.done():
            for kind, call in calls.items():
                began_at = time.monotonic()
                await call()
                took.setdefault(kind, []).append(time.monotonic() - began_at)
    await work
    return took


async def test_status_health_and_cancel_answer_at_once_while_a_load_or_a_denoise_runs(
    worker: WorkerServer, plan: plan_pb2.Plan
) -> None:
    other = plan_pb2.Plan()
    other.CopyFrom(plan)
    other.vae_slicing = not plan.vae_slicing
    works = {
        "load": lambda: worker.load(other),
        "denoise": lambda: worker.generate("run-asked", [apple("asked", 24)], model="emoji"),
    }
    for name, work in works.items():
        took = await ask_while(worker, asyncio.create_task(work()))
        for kind, seconds in took.items():
            # One answer may wait for a processor that others use; the rest is what is promised.
            assert statistics.quantiles(seconds + seconds, n=10)[-1] < ANSWER_S, (name, kind, seconds)


async def test_a_cancel_is_heeded_at_the_next_step(worker: WorkerServer, plan: plan_pb2.Plan) -> None:
    del plan
    request = messages.WorkerServiceGenerateRequest(run_id="run-stop", items=[apple("stop", 100)], model="emoji")
    events, steps_before = [], 0
    async for answer in worker.stub.Generate(request, timeout=60):
        events.append(answer.event)
        if not steps_before and denoised(events) == 3:
            await worker.stub.Cancel(messages.CancelRequest(job_id="stop"), timeout=5)
            steps_before = 3
    assert error_of(events, "stop") == "CANCELLED"
    # One step was under way when it was asked, and one may have been told meanwhile.
    assert denoised(events) <= steps_before + 2


async def test_a_superseding_load_stops_the_run_waits_for_it_and_loads(
    worker: WorkerServer, plan: plan_pb2.Plan
) -> None:
    await worker.load(plan, token(1, "superseding"))
    run = asyncio.create_task(
        worker.generate("run-super", [apple("super", 100)], token=token(1, "superseding"), model="emoji")
    )
    await worker.wait_for(GENERATING)
    other = plan_pb2.Plan()
    other.CopyFrom(plan)
    other.vae_slicing = not plan.vae_slicing
    events = await worker.load(other, token(2, "superseding"))
    ended = await run
    assert error_of(ended, "super") == StaleTokenError.reason
    assert denoised(ended) < 100
    assert events[-1].loaded.plan == other
    named = [str(entry["event"]) for entry in worker.log if entry["event"] in ("run_started", "run_ended", "loaded")]
    assert named[-3:] == ["run_started", "run_ended", "loaded"]
    # An unload that comes before the load has left the device lets nobody go yet.
    async with asyncio.timeout(10):
        while (await worker.status()).HasField("holder"):
            await worker.stub.Unload(messages.UnloadRequest(token=token(2, "superseding")), timeout=10)
            await worker.wait_for(EMPTY)


async def test_two_clients_at_once_get_each_what_they_get_alone_one_after_the_other(
    worker: WorkerServer, plan: plan_pb2.Plan
) -> None:
    del plan
    alone = [(await paint(worker, PROMPT, model="emoji", seed=seed, steps=8, side=SIDE)).data for seed in (1, 2)]
    times: dict[str, list[float]] = {}

    async def client(seed: int) -> bytes:
        name, events = f"client-{seed}", []
        items = [item(name, PROMPT, steps=8, seed=seed, side=SIDE)]
        request = messages.WorkerServiceGenerateRequest(run_id=f"run-{name}", items=items, model="emoji")
        async for answer in worker.stub.Generate(request, timeout=60):
            events.append(answer.event)
            if denoised([answer.event]):
                times.setdefault(name, []).append(time.monotonic())
        return file_of(events, name)

    assert await asyncio.gather(client(1), client(2)) == alone
    first, second = sorted(times.values())
    assert len(first) == len(second) == 8
    assert first[-1] < second[0]


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGKILL])
async def test_an_engine_that_ends_in_a_denoise_is_told_by_its_signal_and_the_next_load_works(
    worker: WorkerServer, plan: plan_pb2.Plan, number: signal.Signals
) -> None:
    before = await paint(worker, PROMPT, model="emoji", seed=SEED, steps=4, side=SIDE)
    engine = psutil.Process((await worker.status()).engine_pid)
    end = functools.partial(engine.send_signal, number)
    items = [apple(f"end-{number}", 100)]
    events = await worker.generate(f"run-{number}", items, model="emoji", in_denoising=end)
    assert error_of(events, f"end-{number}") == EngineDiedError.reason
    assert events[-1].error.metadata["signal"] == number.name
    assert not psutil.pid_exists(engine.pid)
    await worker.load(plan)
    after = await paint(worker, PROMPT, model="emoji", seed=SEED, steps=4, side=SIDE)
    assert after.data == before.data


async def test_an_engine_that_ends_in_a_load_is_told_and_the_next_load_works(
    worker: WorkerServer, plan: plan_pb2.Plan
) -> None:
    other = plan_pb2.Plan()
    other.CopyFrom(plan)
    other.vae_slicing = not plan.vae_slicing
    pid = (await worker.status()).engine_pid

    async def load_and_kill() -> None:
        async for _ in worker.stub.Load(messages.LoadRequest(plan=other), timeout=60):
            with contextlib.suppress(psutil.NoSuchProcess):
                psutil.Process(pid).kill()

    assert isinstance(await failure_of(load_and_kill()), EngineDiedError)
    assert (await worker.load(plan))[-1].HasField("loaded")


async def test_an_unload_gives_the_weights_memory_back(worker: WorkerServer, plan: plan_pb2.Plan) -> None:
    status = await worker.status()
    assert status.device.memory.engine_bytes == pytest.approx(plan.memory.weight_bytes, rel=0.02)
    await worker.stub.Unload(messages.UnloadRequest(), timeout=10)
    after = await worker.wait_for(EMPTY)
    assert after.device.memory.engine_bytes == 0
    assert after.engine_pid == status.engine_pid
