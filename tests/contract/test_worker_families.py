"""Every image family of the catalogue, tiny: assembled by the real line in a real worker, and called by its recipe."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from darkroom.v1 import plan_pb2, worker_pb2
from tests.engines.painting import Painted, differences, paint
from tests.engines.worker_server import WorkerServer, file_of, item
from tests.tiny.families import FAMILIES
from tests.tiny.parts import plan_of, save

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
# Families that only change pictures are in test_worker_editing.py.


def folder_of(pipelines: Path, model: str) -> Path:
    folder = pipelines / model
    return folder if folder.exists() else save(folder, FAMILIES[model][0])


async def load(painter: WorkerServer, plan: plan_pb2.Plan) -> worker_pb2.LoadedModel:
    return (await painter.load(plan))[-1].loaded


def steps_of(model: str) -> int:
    """Lumina guides in the first quarter of the steps only."""
    return 4 if model.startswith("lumina") else 2


async def check_batch(painter: WorkerServer, plan: plan_pb2.Plan, alone: Painted) -> None:
    """A picture beside one with a longer prompt is the picture alone, to a level: float32 sums in another order."""
    steps, model = steps_of(plan.model), plan.model
    longer = "a picture with a much longer prompt, which pads the shorter one"
    items = [item(f"b0-{model}", steps=steps), item(f"b1-{model}", longer, steps=steps, seed=3)]
    events = await painter.generate(f"batch-{model}", items, model=model)
    outputs = [event.output for event in events if event.HasField("output")]
    told = [(knob.requested, knob.engaged) for out in outputs for knob in out.engagements if knob.knob == "batch"]
    assert told == [("2", "2" if plan.call.max_batch > 1 else "1")] * 2
    assert differences(alone, Painted(file_of(events, f"b0-{model}"), outputs[0])).max() <= 1


@pytest.mark.parametrize("model", FAMILIES)
async def test_a_family_paints_from_a_seed_the_same_bytes_alone_and_the_same_picture_in_a_batch(
    painter: WorkerServer, pipelines: Path, model: str
) -> None:
    plan = plan_of(model, folder_of(pipelines, model), **FAMILIES[model][1])
    loaded = await load(painter, plan)
    assert loaded.measured_bytes == pytest.approx(loaded.planned_bytes, rel=0.15)
    steps = steps_of(model)
    first, again = [await paint(painter, model=model, steps=steps) for _ in range(2)]
    assert first.data == again.data
    assert (await paint(painter, model=model, steps=steps, seed=1)).data != first.data
    assert np.shape(first.pixels) == (64, 64, 3)
    engaged = {name: knob.engaged for name, knob in first.knobs.items()}
    assert "size" not in engaged
    has_branches = plan.call.takes_negative_prompt or model == "flux.2-klein-base-4b"
    assert engaged["guidance"] == ("3 (classifier-free)" if has_branches else "3 (embedded)")
    assert not [knob for knob in engaged if knob.startswith("argument:")]
    await check_batch(painter, plan, first)


async def test_guidance_reaches_a_pipeline_that_keeps_it_in_a_component(painter: WorkerServer, pipelines: Path) -> None:
    model = "hunyuanimage-2.1"
    await load(painter, plan_of(model, folder_of(pipelines, model)))
    weak, strong, again = [
        await paint(painter, model=model, steps=2, guidance=guidance) for guidance in (1.5, 15.0, 1.5)
    ]
    assert weak.data == again.data
    assert differences(weak, strong).max() > 0


async def test_a_component_from_elsewhere_is_read_with_its_tokenizer(painter: WorkerServer, pipelines: Path) -> None:
    model = "hidream-i1-full"
    folder = folder_of(pipelines, model)
    whole = plan_of(model, folder, max_sequence_length=32)
    await load(painter, whole)
    expected = await paint(painter, model=model, steps=2)
    elsewhere = pipelines / "llama"
    (folder / "text_encoder_4").rename(elsewhere)
    for file in (folder / "tokenizer_4").iterdir():
        file.rename(elsewhere / file.name)
    plan = plan_pb2.Plan()
    plan.CopyFrom(whole)
    part = next(part for part in plan.components if part.name == "text_encoder_4")
    part.source.path, part.class_name = str(elsewhere), "LlamaForCausalLM"
    await load(painter, plan)
    assert (await paint(painter, model=model, steps=2)).data == expected.data
