"""Every offload tier on a processor, where memory is the host's: the picture is what the resident model paints."""

from __future__ import annotations

import io
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import pytest_asyncio
from PIL import Image

from darkroom.rpc.errors import PlanRefusedError
from darkroom.rpc.status import from_rpc_error
from darkroom.v1 import device_pb2, plan_pb2
from darkroom.v1 import worker_service_pb2 as messages
from tests.engines.worker_server import WorkerServer, error_of, file_of, item, serve_worker
from tests.tiny.flux import save_tiny_flux, tiny_flux_plan

pytestmark = pytest.mark.asyncio(loop_scope="module")
TIERS = ("ENCODERS", "GROUP", "MODEL", "SEQUENTIAL")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    save_tiny_flux(folder / "tiny")
    return folder


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def worker(models: Path) -> AsyncIterator[WorkerServer]:
    async with serve_worker(
        "services.worker.engine",
        DARKROOM_WORKER_MODEL_PATHS=models,
        DARKROOM_WORKER_THREADS=1,
        DARKROOM_WORKER_DEVICE="cpu",
    ) as server:
        yield server


async def load(worker: WorkerServer, folder: Path, tier: str = "NONE", **changes: Any) -> dict[str, Any]:
    plan = tiny_flux_plan(folder / "tiny")
    plan.offload = plan_pb2.OffloadTier.Value(f"OFFLOAD_TIER_{tier}")
    for name, value in changes.items():
        setattr(plan, name, value)
    loaded = (await worker.load(plan))[-1].loaded
    return {knob.knob: knob for knob in loaded.engagements}


async def paint(worker: WorkerServer, job: str, steps: int = 3) -> bytes:
    events = await worker.generate(f"run-{job}", [item(job, steps=steps)], model="tiny")
    assert error_of(events, job) == ""
    return file_of(events, job)


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("tier", TIERS)
async def test_a_tier_paints_what_the_resident_model_paints(
    worker: WorkerServer, models: Path, tier: str, streams: bool
) -> None:
    await load(worker, models)
    expected = await paint(worker, f"resident-{tier}-{streams}")
    knobs = await load(worker, models, tier, streams_text_encoders=streams)
    assert knobs["offload"].engaged == tier.lower()
    assert "nothing is freed" in knobs["offload"].reason
    is_streamed = streams and tier != "MODEL"
    assert knobs["text_encoder_streaming"].engaged == ("on" if is_streamed else "off")
    assert [await paint(worker, f"{place}-{tier}-{streams}") for place in ("once", "twice")] == [expected, expected]


async def test_a_cancel_in_a_tier_leaves_the_next_picture_as_it_was(worker: WorkerServer, models: Path) -> None:
    await load(worker, models, "ENCODERS")
    before = await paint(worker, "before-cancel")
    request = messages.WorkerServiceGenerateRequest(run_id="run-long", items=[item("long", steps=2000)], model="tiny")
    seen = 0
    async for _ in worker.stub.Generate(request, timeout=60):
        seen += 1
        if seen == 6:
            await worker.stub.Cancel(messages.CancelRequest(job_id="long"), timeout=5)
    assert await paint(worker, "after-cancel") == before


async def test_decoding_in_tiles_and_one_by_one_is_told(worker: WorkerServer, models: Path) -> None:
    knobs = await load(worker, models, "MODEL", vae_tiling=True, vae_slicing=True, vae_tile_side=512)
    assert (knobs["vae_tiling"].engaged, knobs["vae_slicing"].engaged) == ("on", "on")
    assert await paint(worker, "tiled")


@pytest.mark.parametrize(("tier", "scheme"), [("GROUP", "INT8"), ("SEQUENTIAL", "INT8"), ("GROUP", "FP8")])
async def test_streaming_what_breaks_when_streamed_is_refused(
    worker: WorkerServer, models: Path, tier: str, scheme: str
) -> None:
    plan = tiny_flux_plan(models / "tiny")
    plan.offload = plan_pb2.OffloadTier.Value(f"OFFLOAD_TIER_{tier}")
    plan.components[2].scheme = device_pb2.Scheme.Value(f"SCHEME_{scheme}")
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await worker.load(plan)
    failure = from_rpc_error(caught.value)
    assert isinstance(failure, PlanRefusedError)
    assert "can't be streamed" in failure.message


@pytest.mark.parametrize(("tier", "scheme"), [("ENCODERS", "INT8"), ("MODEL", "INT8"), ("GROUP", "FP8_STORAGE")])
async def test_a_scheme_paints_the_same_in_a_tier_as_resident(
    worker: WorkerServer, models: Path, tier: str, scheme: str
) -> None:
    pictures = []
    for place in ("NONE", tier):
        plan = tiny_flux_plan(models / "tiny")
        plan.offload = plan_pb2.OffloadTier.Value(f"OFFLOAD_TIER_{place}")
        part = plan.components[2]
        part.scheme = device_pb2.Scheme.Value(f"SCHEME_{scheme}")
        part.recipe.CopyFrom(plan_pb2.QuantisationRecipe(min_features=32, exclude_names=["norm", "time_text_embed"]))
        loaded = (await worker.load(plan))[-1].loaded
        engaged = {knob.knob: knob.engaged for knob in loaded.engagements}
        assert f"transformer={scheme.lower()}" in engaged["scheme"]
        assert engaged["offload"] == place.lower()
        data = await paint(worker, f"{place}-{tier}-{scheme}")
        pictures.append(np.asarray(Image.open(io.BytesIO(data)), dtype=int))
    # Moving weights aligns them anew, which rounds elsewhere: seen in int8 to move a pixel by a level or two.
    difference = np.abs(pictures[0] - pictures[1])
    assert difference.max() <= 3
    assert difference.mean() < 0.2
