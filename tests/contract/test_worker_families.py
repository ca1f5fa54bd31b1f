"""Every image family of the catalogue, tiny: assembled by the real line in a real worker, and called by its recipe."""

from __future__ import annotations

import io
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio
from PIL import Image

from darkroom.v1 import plan_pb2, worker_pb2
from tests.engines.worker_server import WorkerServer, error_of, file_of, item, serve_worker
from tests.tiny import flux_2, hidream, hunyuanimage, krea_2, lumina_2, qwen_image, z_image
from tests.tiny.parts import plan_of, save

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]
# Model of the catalogue, how to build its like, and arguments that a tiny text encoder needs otherwise.
FAMILIES: dict[str, tuple[Callable[[], Any], dict[str, Any]]] = {
    "z-image": (z_image.build, {"max_sequence_length": 64}),
    "qwen-image": (qwen_image.build, {}),
    "krea-2-raw": (krea_2.build, {}),
    "lumina-image-2.0": (lumina_2.build, {}),
    "flux.2-klein-base-4b": (flux_2.build_klein, {"max_sequence_length": 64}),
    "flux.2-dev": (flux_2.build_dev, {}),
    "hunyuanimage-2.1": (hunyuanimage.build, {}),
    "hidream-i1-full": (hidream.build, {"max_sequence_length": 32}),
}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def worker(models: Path) -> AsyncIterator[WorkerServer]:
    async with serve_worker(
        "services.worker.engine",
        DARKROOM_WORKER_MODEL_PATHS=models,
        DARKROOM_WORKER_THREADS=1,
        DARKROOM_WORKER_DEVICE="cpu",
    ) as server:
        yield server


async def load(worker: WorkerServer, plan: plan_pb2.Plan) -> worker_pb2.LoadedModel:
    return (await worker.load(plan))[-1].loaded


async def paint(worker: WorkerServer, job: str, model: str, **wishes: Any) -> tuple[bytes, dict[str, str]]:
    guidance = wishes.pop("guidance", 3.0)
    # Lumina guides in the first quarter of the steps only.
    steps = 4 if model.startswith("lumina") else 2
    wanted = item(job, wishes.pop("prompt", "a red apple"), steps=steps, **wishes)
    wanted.request.guidance = guidance
    events = await worker.generate(f"run-{job}", [wanted], model=model)
    assert error_of(events, job) == "", [event.error for event in events if event.HasField("error")]
    output = next(event.output for event in events if event.HasField("output"))
    return file_of(events, job), {knob.knob: knob.engaged for knob in output.engagements}


async def check_batch(worker: WorkerServer, plan: plan_pb2.Plan, alone: bytes) -> None:
    """A picture beside one with a longer prompt is the picture alone, to a level of 255: float32 sums in another order."""
    steps, model = (4 if plan.model.startswith("lumina") else 2), plan.model
    longer = "a picture with a much longer prompt, which pads the shorter one"
    items = [item(f"b0-{model}", steps=steps), item(f"b1-{model}", longer, steps=steps, seed=3)]
    events = await worker.generate(f"batch-{model}", items, model=model)
    outputs = [event.output for event in events if event.HasField("output")]
    told = [(knob.requested, knob.engaged) for out in outputs for knob in out.engagements if knob.knob == "batch"]
    assert told == [("2", "2" if plan.call.max_batch > 1 else "1")] * 2
    pictures = [np.asarray(Image.open(io.BytesIO(data)), dtype=int) for data in (alone, file_of(events, f"b0-{model}"))]
    assert np.abs(pictures[0] - pictures[1]).max() <= 1


@pytest.mark.parametrize("model", FAMILIES)
async def test_a_family_paints_from_a_seed_the_same_bytes_alone_and_the_same_picture_in_a_batch(
    worker: WorkerServer, models: Path, model: str
) -> None:
    build, arguments = FAMILIES[model]
    plan = plan_of(model, save(models / model, build), **arguments)
    loaded = await load(worker, plan)
    assert loaded.measured_bytes == pytest.approx(loaded.planned_bytes, rel=0.15)
    first, engaged = await paint(worker, f"first-{model}", model)
    again, _ = await paint(worker, f"again-{model}", model)
    assert first == again
    other, _ = await paint(worker, f"other-{model}", model, seed=1)
    assert other != first
    assert Image.open(io.BytesIO(first)).size == (64, 64)
    assert "size" not in engaged
    has_branches = plan.call.takes_negative_prompt or model == "flux.2-klein-base-4b"
    assert engaged["guidance"] == ("3 (classifier-free)" if has_branches else "3 (embedded)")
    assert not [knob for knob in engaged if knob.startswith("argument:")]
    await check_batch(worker, plan, first)


async def test_guidance_reaches_a_pipeline_that_keeps_it_in_a_component(worker: WorkerServer, models: Path) -> None:
    model = "hunyuanimage-2.1"
    folder = models / model if (models / model).exists() else save(models / model, hunyuanimage.build)
    await load(worker, plan_of(model, folder))
    weak, _ = await paint(worker, "weak", model, guidance=1.5)
    strong, _ = await paint(worker, "strong", model, guidance=15.0)
    weak_again, _ = await paint(worker, "weak-again", model, guidance=1.5)
    assert weak == weak_again
    pictures = [np.asarray(Image.open(io.BytesIO(data)), dtype=int) for data in (weak, strong)]
    assert np.abs(pictures[0] - pictures[1]).max() > 0


async def test_a_component_from_elsewhere_is_read_with_its_tokenizer(worker: WorkerServer, models: Path) -> None:
    model = "hidream-i1-full"
    folder = models / model if (models / model).exists() else save(models / model, hidream.build)
    whole = plan_of(model, folder, max_sequence_length=32)
    await load(worker, whole)
    expected, _ = await paint(worker, "whole", model)
    elsewhere = models / "llama"
    (folder / "text_encoder_4").rename(elsewhere)
    for file in (folder / "tokenizer_4").iterdir():
        file.rename(elsewhere / file.name)
    plan = plan_pb2.Plan()
    plan.CopyFrom(whole)
    part = next(part for part in plan.components if part.name == "text_encoder_4")
    part.source.path, part.class_name = str(elsewhere), "LlamaForCausalLM"
    await load(worker, plan)
    assert (await paint(worker, "elsewhere", model))[0] == expected
