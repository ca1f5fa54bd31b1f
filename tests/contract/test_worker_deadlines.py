"""An item's time is over: the worker stops it by itself, whoever is left to ask."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from darkroom.v1 import worker_pb2
from darkroom.v1 import worker_service_pb2 as messages
from tests.engines.worker_server import (
    WorkerServer,
    error_of,
    file_of,
    item,
    rehearsal_models,
    rehearsal_plan,
    serve_worker,
    token,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")
READY = worker_pb2.WORKER_STATE_READY
SLOW = "rehearse: steps of 0.1 s"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def worker(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[WorkerServer]:
    folder: Path = tmp_path_factory.mktemp("worker")
    models = rehearsal_models(folder / "models")
    async with serve_worker(DARKROOM_MODELS_DIR=models, REHEARSAL_LEDGER=folder / "ledger") as server:
        await server.load(rehearsal_plan(), token(1))
        server.ledger = folder / "ledger"  # type: ignore[attr-defined]
        yield server


def due(job_id: str, left_s: float, steps: int = 50, prompt: str = SLOW) -> worker_pb2.RunItem:
    wanted = item(job_id, prompt, steps=steps)
    wanted.time_left.FromMilliseconds(int(left_s * 1000))
    return wanted


def num_steps(worker: WorkerServer, job_id: str) -> int:
    return sum(f" step {job_id} " in line for line in worker.ledger.read_text().splitlines())  # type: ignore[attr-defined]


async def test_a_run_whose_callers_are_all_dead_stops_at_its_deadline_and_frees_the_device(
    worker: WorkerServer,
) -> None:
    request = messages.WorkerServiceGenerateRequest(
        run_id="orphan", token=token(2), items=[due("orphan", 1.0)], model="rehearsal"
    )
    call = worker.stub.Generate(request, timeout=20)
    await call.read()
    call.cancel()
    began_at = time.monotonic()
    await worker.wait_for(READY)
    assert time.monotonic() - began_at < 3
    assert 3 <= num_steps(worker, "orphan") <= 12
    events = await worker.generate("orphan", [], token=token(3))
    assert error_of(events, "orphan") == "DEADLINE_EXCEEDED"


async def test_only_the_item_whose_time_is_over_is_stopped(worker: WorkerServer) -> None:
    events = await worker.generate("two", [due("late", 0.5), due("early", 30.0, prompt="a red apple")], token=token(4))
    assert error_of(events, "late") == "DEADLINE_EXCEEDED"
    assert error_of(events, "early") == ""
    assert file_of(events, "early")


async def test_an_item_that_waits_past_its_deadline_is_never_begun(worker: WorkerServer) -> None:
    first = asyncio.create_task(worker.generate("long", [item("long", SLOW, steps=12)], token=token(5)))
    await worker.wait_for(worker_pb2.WORKER_STATE_GENERATING)
    waiting = await worker.generate("behind", [due("behind", 0.3)], token=token(5))
    assert error_of(waiting, "behind") == "DEADLINE_EXCEEDED"
    assert not first.done()
    assert file_of(await first, "long")
    assert num_steps(worker, "behind") == 0


async def test_a_picture_that_is_done_in_time_is_kept_past_its_deadline(worker: WorkerServer) -> None:
    await worker.generate("quick", [due("quick", 1.5, steps=2)], token=token(6))
    await asyncio.sleep(1.6)
    assert file_of(await worker.generate("quick", [], token=token(6)), "quick")
