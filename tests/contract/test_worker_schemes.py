"""The bundled model in every scheme that a processor runs: planned, loaded, painted, and still recognised."""

from __future__ import annotations

import io
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from PIL import Image

from darkroom.knowledge import load_catalogue
from darkroom.rpc.errors import PlanRefusedError
from darkroom.v1 import device_pb2, plan_pb2, planner_service_pb2, worker_pb2
from models.emoji.retrieval import load_reference
from services.planner.planning import plan as make_plan
from tests.engines.worker_server import WorkerServer, error_of, file_of, item, serve_worker

pytestmark = pytest.mark.asyncio(loop_scope="module")
CATALOGUE = load_catalogue()
PROMPT, SEED = "a red apple, 3d style, blue background", 3


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def worker(cache: Path) -> AsyncIterator[WorkerServer]:
    async with serve_worker(
        "services.worker.engine",
        DARKROOM_WORKER_DEVICE="cpu",
        DARKROOM_WORKER_THREADS=2,
        DARKROOM_WORKER_CACHE_DIR=cache,
    ) as server:
        yield server


def planned(device: device_pb2.Device, **wishes: object) -> plan_pb2.Plan:
    request = planner_service_pb2.PlanRequest(
        model="emoji", device=device, preferences=plan_pb2.PlanPreferences(**wishes)
    )
    answer = make_plan(request, CATALOGUE)
    assert answer.HasField("plan")
    return answer.plan


async def load(worker: WorkerServer, plan: plan_pb2.Plan) -> tuple[worker_pb2.LoadedModel, dict[str, str]]:
    loaded = (await worker.load(plan))[-1].loaded
    return loaded, {knob.knob: knob.engaged for knob in loaded.engagements}


async def paint(worker: WorkerServer, job: str, steps: int = 10) -> bytes:
    wanted = item(job, PROMPT, steps=steps, seed=SEED, side=128)
    events = await worker.generate(f"run-{job}", [wanted], model="emoji")
    assert error_of(events, job) == ""
    return file_of(events, job)


def shows(data: bytes) -> str:
    return load_reference().nearest(Image.open(io.BytesIO(data)), 1)[0].name


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
    plan = planned((await worker.status()).device)
    assert {part.scheme for part in plan.components} == {device_pb2.SCHEME_NONE}


@pytest.mark.parametrize("scheme", ["INT8", "FP8", "FP8_STORAGE"])
async def test_the_picture_is_still_what_was_asked_for(worker: WorkerServer, scheme: str) -> None:
    device = (await worker.status()).device
    if scheme == "FP8" and not device.has_native_bf16:
        with pytest.raises(PlanRefusedError, match="bfloat16"):
            planned(device, scheme=device_pb2.SCHEME_FP8)
        return
    plan = planned(device, scheme=device_pb2.Scheme.Value(f"SCHEME_{scheme}"))
    loaded, engaged = await load(worker, plan)
    assert f"transformer={scheme.lower()}" in engaged["scheme"]
    dense = planned(device).memory.weight_bytes
    assert loaded.measured_bytes < dense
    # The plan counts what the catalogue counted with the same filter.
    assert loaded.measured_bytes == pytest.approx(loaded.planned_bytes, rel=0.02)
    assert shows(await paint(worker, f"whole-{scheme}")) == "red apple"
    first, again = [await paint(worker, f"{place}-{scheme}", steps=2) for place in ("first", "again")]
    assert first == again


async def test_text_encoders_are_cast_too(worker: WorkerServer) -> None:
    plan = planned((await worker.status()).device, text_encoder_scheme=device_pb2.SCHEME_FP8_STORAGE)
    loaded, engaged = await load(worker, plan)
    assert engaged["scheme"].startswith("text_encoder=fp8_storage, text_encoder_2=fp8_storage, transformer=none")
    assert loaded.measured_bytes == pytest.approx(loaded.planned_bytes, rel=0.02)
    assert shows(await paint(worker, "text")) == "red apple"


async def test_dense_again_after_a_scheme_is_the_same_picture(worker: WorkerServer) -> None:
    device = (await worker.status()).device
    await load(worker, planned(device))
    before = await paint(worker, "before")
    assert shows(before) == "red apple"
    await load(worker, planned(device, scheme=device_pb2.SCHEME_FP8_STORAGE))
    await load(worker, planned(device))
    assert await paint(worker, "after") == before
