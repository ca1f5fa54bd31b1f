"""Models that only change a given picture: assembled from real folders, and refused by name before any work."""

from __future__ import annotations

import importlib.util
import json
import shutil
from pathlib import Path

import pytest

from darkroom.rpc.errors import InvalidRequestError, PlanRefusedError
from darkroom.v1 import worker_pb2
from tests.engines.painting import failure_of, paint
from tests.engines.worker_server import WorkerServer, item
from tests.tiny import qwen_image
from tests.tiny.flux import tiny_flux_plan
from tests.tiny.parts import plan_of, save

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


def name_pipeline(folder: Path, pipeline_class: str, **parts: list[str]) -> None:
    """Makes a folder say that it holds another pipeline, with these parts beside its own."""
    path = folder / "model_index.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"_class_name": pipeline_class} | parts))


async def test_kontext_is_assembled_and_a_request_without_a_picture_is_refused_before_any_work(
    painter: WorkerServer, pipelines: Path
) -> None:
    folder = pipelines / "kontext"
    shutil.copytree(pipelines / "tiny", folder)
    name_pipeline(folder, "FluxKontextPipeline")
    plan = plan_of("flux.1-kontext-dev", folder)
    loaded = (await painter.load(plan))[-1].loaded
    assert loaded.measured_bytes == pytest.approx(loaded.planned_bytes, rel=0.1)
    wanted = item("kontext")
    events = await painter.generate("run-kontext", [wanted], model="flux.1-kontext-dev")
    assert [event.WhichOneof("event") for event in events] == ["error"]
    assert events[0].error.reason == InvalidRequestError.reason
    assert "flux.1-kontext-dev changes a picture that the request brings" in events[0].error.message
    assert (await painter.status()).state == worker_pb2.WORKER_STATE_READY


@pytest.mark.skipif(importlib.util.find_spec("torchvision") is not None, reason="torchvision is here")
async def test_a_processor_without_its_package_is_named_before_anything_is_evicted(
    painter: WorkerServer, pipelines: Path
) -> None:
    folder = save(pipelines / "qwen-edit", qwen_image.build)
    shutil.copytree(folder / "tokenizer", folder / "processor")
    name_pipeline(folder, "QwenImageEditPlusPipeline", processor=["transformers", "Qwen2VLProcessor"])
    await painter.load(tiny_flux_plan(pipelines / "tiny"))
    failure = await failure_of(painter.load(plan_of("qwen-image-edit-2511", folder)))
    assert isinstance(failure, PlanRefusedError)
    assert "Qwen2VLProcessor needs torchvision" in failure.message
    assert "darkroom[worker-cuda]" in failure.message
    assert (await painter.status()).loaded.plan.model == "tiny"
    assert (await paint(painter, steps=2)).data
