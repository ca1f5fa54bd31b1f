"""The bundled model in every scheme that a processor runs: planned, loaded, painted, and still recognised."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from darkroom.rpc.errors import PlanRefusedError
from darkroom.v1 import device_pb2, plan_pb2, worker_pb2
from tests.engines.emoji import PROMPT, SEED, SHOWN, SIDE, emoji_plan, shows
from tests.engines.painting import knobs_of, paint, serve_painter
from tests.engines.worker_server import WorkerServer

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def worker(cache: Path) -> AsyncIterator[WorkerServer]:
    async with serve_painter(cache, DARKROOM_WORKER_CACHE_DIR=cache) as server:
        yield server


async def load(worker: WorkerServer, plan: plan_pb2.Plan) -> tuple[worker_pb2.LoadedModel, dict[str, str]]:
    loaded = (await worker.load(plan))[-1].loaded
    return loaded, {name: knob.engaged for name, knob in knobs_of(loaded).items()}


async def paint_apple(worker: WorkerServer, steps: int = 10) -> bytes:
    return (await paint(worker, PROMPT, model="emoji", seed=SEED, steps=steps, side=SIDE)).data


async def test_what_the_processor_runs_was_tried_and_is_remembered(worker: WorkerServer, cache: Path) -> None:
    probes = {probe.scheme: probe.works for probe in (await worker.status()).device.probes}
    assert probes == {
        device_pb2.SCHEME_INT8: True,
        device_pb2.SCHEME_FP8: True,
        device_pb2.SCHEME_NVFP4: True,
        device_pb2.SCHEME_FP8_STORAGE: True,
    }
    (answers,) = json.loads((cache / "probes.json").read_text()).values()
    assert set(answers) == {"2", "3", "4", "6"}


async def test_unasked_a_processor_stays_dense(worker: WorkerServer) -> None:
    plan = emoji_plan((await worker.status()).device)
    assert {part.scheme for part in plan.components} == {device_pb2.SCHEME_NONE}


@pytest.mark.parametrize("scheme", ["INT8", "FP8", "FP8_STORAGE"])
async def test_the_picture_is_still_what_was_asked_for(worker: WorkerServer, scheme: str) -> None:
    device = (await worker.status()).device
    if scheme == "FP8" and not device.has_native_bf16:
        with pytest.raises(PlanRefusedError, match="bfloat16"):
            emoji_plan(device, scheme=device_pb2.SCHEME_FP8)
        return
    plan = emoji_plan(device, scheme=device_pb2.Scheme.Value(f"SCHEME_{scheme}"))
    loaded, engaged = await load(worker, plan)
    assert f"transformer={scheme.lower()}" in engaged["scheme"]
    dense = emoji_plan(device).memory.weight_bytes
    assert loaded.measured_bytes < dense
    # The plan counts what the catalogue counted with the same filter.
    assert loaded.measured_bytes == pytest.approx(loaded.planned_bytes, rel=0.02)
    assert shows(await paint_apple(worker)) == SHOWN
    first, again = [await paint_apple(worker, steps=2) for _ in range(2)]
    assert first == again


async def test_text_encoders_are_cast_too(worker: WorkerServer) -> None:
    plan = emoji_plan((await worker.status()).device, text_encoder_scheme=device_pb2.SCHEME_FP8_STORAGE)
    loaded, engaged = await load(worker, plan)
    assert engaged["scheme"].startswith("text_encoder=fp8_storage, text_encoder_2=fp8_storage, transformer=none")
    assert loaded.measured_bytes == pytest.approx(loaded.planned_bytes, rel=0.02)
    assert shows(await paint_apple(worker)) == SHOWN


async def test_dense_again_after_a_scheme_is_the_same_picture(worker: WorkerServer) -> None:
    device = (await worker.status()).device
    await load(worker, emoji_plan(device))
    before = await paint_apple(worker)
    assert shows(before) == SHOWN
    await load(worker, emoji_plan(device, scheme=device_pb2.SCHEME_FP8_STORAGE))
    await load(worker, emoji_plan(device))
    assert await paint_apple(worker) == before
