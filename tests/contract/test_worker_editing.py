"""Pictures that requests bring: changed by models that need one, taken by models that may, else refused by name."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from darkroom.rpc.errors import DarkroomError, InvalidRequestError, PlanRefusedError, error_from_message
from darkroom.v1 import generation_pb2, plan_pb2, worker_pb2
from tests.engines.painting import Painted, differences, failure_of, paint, serve_painter
from tests.engines.snapshots import file_of_image, png_that_claims, reference, scene
from tests.engines.worker_server import ROOT, WorkerServer, item
from tests.tiny import flux, flux_2, qwen_image
from tests.tiny.flux import tiny_flux_plan
from tests.tiny.parts import plan_of, save

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
KLEIN, DEV, KONTEXT, QWEN = "flux.2-klein-base-4b", "flux.2-dev", "flux.1-kontext-dev", "qwen-image-edit-2511"
UPRIGHT = scene(96, 64)
# A folder that holds torchvision's wheel: `pip install --no-deps --target FOLDER torchvision==0.28.0`.
TORCHVISION = os.environ.get("DARKROOM_TEST_TORCHVISION", "")
IMAGE_PROCESSOR = {"image_processor_type": "Qwen2VLImageProcessor", "patch_size": 14, "merge_size": 2}


def named(image: bytes) -> list[generation_pb2.InputImage]:
    """A request's one picture."""
    return [reference(image)]


def name_edit_plus(folder: Path) -> None:
    """Makes the folder of a Qwen-Image say that it holds the pipeline that edits, with its processor."""
    shutil.copytree(folder / "tokenizer", folder / "processor")
    index = folder / "model_index.json"
    parts = {"_class_name": "QwenImageEditPlusPipeline", "processor": ["transformers", "Qwen2VLProcessor"]}
    index.write_text(json.dumps(json.loads(index.read_text()) | parts))


async def load_klein(painter: WorkerServer, pipelines: Path) -> plan_pb2.Plan:
    folder = pipelines / "klein-editing"
    if not folder.exists():
        save(folder, flux_2.build_klein)
    plan = plan_of(KLEIN, folder, max_sequence_length=64)
    await painter.load(plan)
    return plan


async def change(painter: WorkerServer, *files: bytes, **wishes: Any) -> Painted:
    """Has klein paint with pictures beside the prompt."""
    return await paint(painter, model=KLEIN, images=[reference(file) for file in files], **{"steps": 2, **wishes})


async def refusal_of(
    painter: WorkerServer, images: Sequence[generation_pb2.InputImage], model: str = KLEIN
) -> DarkroomError:
    """Asks for a picture that is refused; returns with what, whether before the run began or as its one event."""
    wanted = item(f"refused-{os.urandom(4).hex()}")
    wanted.request.images.extend(images)
    call = painter.generate(f"run-{wanted.job_id}", [wanted], model=model)
    try:
        events = await call
    except Exception as failure:
        return await failure_of(_raising(failure))
    assert [event.WhichOneof("event") for event in events] == ["error"]
    return error_from_message(events[0].error)


async def _raising(failure: Exception) -> None:
    raise failure


async def test_a_reference_changes_the_picture_and_the_same_reference_changes_it_alike(
    painter: WorkerServer, pipelines: Path
) -> None:
    await load_klein(painter, pipelines)
    alone = await change(painter)
    first, again = [await change(painter, file_of_image(UPRIGHT)) for _ in range(2)]
    other = await change(painter, file_of_image(scene(96, 64, seed=1)))
    two = await change(painter, file_of_image(UPRIGHT), file_of_image(scene(64, 80, seed=1)))
    assert first.data == again.data
    assert len({painted.data for painted in (alone, first, other, two)}) == 4
    assert "images" not in alone.knobs
    assert (two.knobs["images"].requested, two.knobs["images"].engaged) == ("96x64, 64x80", "96x64, 64x80")
    assert first.knobs["images"].reason == ""


async def test_flux_2_dev_takes_references_too(painter: WorkerServer, pipelines: Path) -> None:
    folder = save(pipelines / "dev-editing", flux_2.build_dev)
    await painter.load(plan_of(DEV, folder))
    pictures = [[], [reference(file_of_image(UPRIGHT))], [reference(file_of_image(UPRIGHT))]]
    alone, first, again = [await paint(painter, model=DEV, steps=1, images=images) for images in pictures]
    assert alone.data != first.data == again.data
    assert first.knobs["images"].engaged == "96x64"


async def test_a_picture_counts_as_people_see_it_whatever_its_file_says(painter: WorkerServer, pipelines: Path) -> None:
    await load_klein(painter, pipelines)
    expected = await change(painter, file_of_image(UPRIGHT))
    # EXIF 6: the camera was turned; shown upright by turning clockwise.
    turned = await change(painter, file_of_image(UPRIGHT.rotate(90, expand=True), "PNG", 6))
    lossless = await change(painter, file_of_image(UPRIGHT, "WEBP", lossless=True))
    opaque = await change(painter, file_of_image(UPRIGHT.convert("RGBA")))
    assert {turned.data, lossless.data, opaque.data} == {expected.data}
    assert turned.knobs["images"].reason == "picture 1 turned upright from EXIF orientation 6"
    assert turned.knobs["images"].requested == "96x64"
    clear = UPRIGHT.convert("RGBA")
    clear.putalpha(0)
    white = await change(painter, file_of_image(UPRIGHT.point(lambda _: 255)))
    through = await change(painter, file_of_image(clear))
    assert through.data == white.data
    assert through.knobs["images"].reason == "picture 1 transparent parts laid over white"
    grey = await change(painter, file_of_image(UPRIGHT.convert("L").convert("I;16").point(lambda level: level * 256)))
    assert grey.data == (await change(painter, file_of_image(UPRIGHT.convert("L")))).data


async def test_what_cannot_be_read_is_refused_by_its_field_and_the_model_serves_on(
    painter: WorkerServer, pipelines: Path
) -> None:
    await load_klein(painter, pipelines)
    jpeg = file_of_image(scene(256, 256), "JPEG")
    refusals = {
        "is a JPEG that is cut off": jpeg[: len(jpeg) // 2],
        "can't be decoded": png_that_claims(96, 64),
        "no PNG, JPEG or WebP": b"GIF89a" + bytes(100),
        "a picture has at most 33,554,432": png_that_claims(100_000, 100_000),
        "a picture has at most 8,388,608": jpeg + bytes(8 * 2**20),
        "moves": file_of_image(UPRIGHT, save_all=True, append_images=[scene(96, 64, seed=1)]),
        "at least 64": file_of_image(scene(32, 96)),
    }
    for problem, file in refusals.items():
        failure = await refusal_of(painter, named(file))
        assert isinstance(failure, InvalidRequestError)
        assert problem in failure.message
        assert "images[0].data" in failure.message
    assert (await change(painter, jpeg)).data
    too_many = await refusal_of(painter, named(jpeg) * 4)
    assert "are 4; flux.2-klein-base-4b takes at most 3" in too_many.message
    assert (await painter.status()).state == worker_pb2.WORKER_STATE_READY


async def test_requests_with_pictures_are_made_one_by_one_beside_others(painter: WorkerServer, pipelines: Path) -> None:
    await load_klein(painter, pipelines)
    expected = await change(painter, file_of_image(UPRIGHT))
    items = [item(name, steps=2) for name in ("beside-1", "beside-2", "beside-3")]
    items[1].request.images.extend(named(file_of_image(UPRIGHT)))
    events = await painter.generate("run-beside", items, model=KLEIN)
    outputs = {event.job_id: event.output for event in events if event.HasField("output")}
    knobs = {name: next(k for k in output.engagements if k.knob == "batch") for name, output in outputs.items()}
    assert {knob.engaged for knob in knobs.values()} == {"1"}
    assert knobs["beside-2"].reason == "a request that brings pictures is made alone"
    assert outputs["beside-2"].sha256 == expected.output.sha256


async def test_a_model_for_words_alone_refuses_a_picture(painter: WorkerServer, pipelines: Path) -> None:
    await painter.load(tiny_flux_plan(pipelines / "tiny"))
    failure = await refusal_of(painter, named(file_of_image(UPRIGHT)), model="tiny")
    assert isinstance(failure, InvalidRequestError)
    assert "are 1; tiny paints from words alone and takes none" in failure.message
    assert (await paint(painter, steps=1)).data


async def test_kontext_changes_a_picture_at_the_wanted_size_and_needs_one(
    painter: WorkerServer, pipelines: Path
) -> None:
    folder = save(pipelines / "kontext", flux.build_kontext)
    plan = plan_of(KONTEXT, folder, max_sequence_length=flux.MAX_TOKENS)
    loaded = (await painter.load(plan))[-1].loaded
    assert loaded.measured_bytes == pytest.approx(loaded.planned_bytes, rel=0.1)
    absent = await refusal_of(painter, [], model=KONTEXT)
    assert isinstance(absent, InvalidRequestError)
    assert "are missing; flux.1-kontext-dev changes pictures that the request brings, 1 to 1" in absent.message
    first, again, other = [
        await paint(painter, model=KONTEXT, steps=1, images=named(file_of_image(scene(128, 96, seed=seed))))
        for seed in (0, 0, 1)
    ]
    assert first.data == again.data
    assert differences(first, other).max() > 0
    assert (first.output.width, first.output.height) == (64, 64)
    assert "size" not in first.knobs
    images = first.knobs["images"]
    assert (images.requested, images.engaged) == ("128x96", "1184x880")
    assert images.reason == "the pipeline reads pictures at sizes of its own"


@pytest.mark.skipif(not TORCHVISION, reason="DARKROOM_TEST_TORCHVISION names no folder with torchvision in it")
async def test_qwen_changes_several_pictures_beside_a_stub_of_torchvision(pipelines: Path) -> None:
    folder = save(pipelines / "qwen-edit-stub", qwen_image.build)
    name_edit_plus(folder)
    (folder / "processor" / "preprocessor_config.json").write_text(json.dumps(IMAGE_PROCESSOR))
    path = os.pathsep.join((str(ROOT), TORCHVISION))
    stub = {"DARKROOM_WORKER_ENGINE_MODULE": "tests.engines.torchvision_stub", "PYTHONPATH": path}
    async with serve_painter(pipelines, **stub) as worker:
        await worker.load(plan_of(QWEN, folder))
        files = [[scene(96, 64)], [scene(96, 64)], [scene(96, 64, seed=1)], [scene(96, 64), scene(64, 96, seed=1)]]
        first, again, other, two = [
            await paint(worker, model=QWEN, steps=1, images=[reference(file_of_image(one)) for one in pictures])
            for pictures in files
        ]
    assert first.data == again.data
    assert len({painted.data for painted in (first, other, two)}) == 3
    assert (two.output.width, two.output.height) == (64, 64)
    assert (two.knobs["images"].requested, two.knobs["images"].engaged) == ("96x64, 64x96", "1248x832, 832x1248")


@pytest.mark.skipif(importlib.util.find_spec("torchvision") is not None, reason="torchvision is here")
async def test_a_processor_without_its_package_is_named_before_anything_is_evicted(
    painter: WorkerServer, pipelines: Path
) -> None:
    folder = save(pipelines / "qwen-edit", qwen_image.build)
    name_edit_plus(folder)
    await painter.load(tiny_flux_plan(pipelines / "tiny"))
    failure = await failure_of(painter.load(plan_of(QWEN, folder)))
    assert isinstance(failure, PlanRefusedError)
    assert "Qwen2VLProcessor needs torchvision" in failure.message
    assert "darkroom[worker-cuda]" in failure.message
    assert (await painter.status()).loaded.plan.model == "tiny"
    assert (await paint(painter, steps=2)).data
