"""Broken, disguised and mistaken weights: named before anything is evicted, and what is loaded paints on as before."""

from __future__ import annotations

import json
import shutil
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from safetensors.torch import load_file, save_file

from darkroom.rpc.errors import CorruptCheckpointError, DarkroomError, SourceRefusedError
from darkroom.v1 import checkpoint_pb2, plan_pb2
from tests.engines.painting import failure_of, paint
from tests.engines.worker_server import WorkerServer
from tests.tiny import z_image
from tests.tiny.flux import save_tiny_flux, tiny_flux_plan
from tests.tiny.parts import save
from tests.tiny.weight_files import KINDS, plan_with_file, write_gguf

WEIGHTS = "diffusion_pytorch_model.safetensors"


@pytest.fixture(scope="module")
def denoisers(pipelines: Path) -> Path:
    """A folder with the tiny denoiser in one file of each kind."""
    folder = pipelines / "denoisers"
    folder.mkdir()
    tensors = load_file(pipelines / "tiny" / "transformer" / WEIGHTS)
    save_file(tensors, folder / "whole.safetensors")
    write_gguf(folder / "whole.gguf", tensors)
    return folder


@pytest_asyncio.fixture(loop_scope="session")
async def refusing(painter: WorkerServer, pipelines: Path) -> AsyncIterator[Callable[[plan_pb2.Plan], Any]]:
    """Loads the tiny model, refuses plans, and in the end finds the tiny model painting the same bytes."""
    plan = tiny_flux_plan(pipelines / "tiny")
    await painter.load(plan)
    before = (await paint(painter, steps=2)).data
    pid = (await painter.status()).engine_pid

    async def refuse(broken: plan_pb2.Plan) -> DarkroomError:
        return await failure_of(painter.load(broken))

    yield refuse
    status = await painter.status()
    assert (status.loaded.plan, status.engine_pid) == (plan, pid)
    assert (await paint(painter, steps=2)).data == before


def html(content: bytes) -> bytes:
    return b"<!DOCTYPE html><html><body>404</body></html>" * 40


def pointer(content: bytes) -> bytes:
    return b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 123\n"


def truncated(content: bytes) -> bytes:
    return content[:-2000]


def flipped(content: bytes) -> bytes:
    return content[:16] + bytes([content[16] ^ 0x80]) + content[17:]


SPOILS = {html: "HTML page", pointer: "Git LFS pointer", truncated: "truncated", flipped: ""}


@pytest.mark.parametrize("spoil", SPOILS)
async def test_a_broken_weight_file_of_a_folder_is_named(
    refusing: Any, pipelines: Path, spoil: Callable[[bytes], bytes]
) -> None:
    folder = pipelines / f"spoilt-{spoil.__name__}"
    shutil.copytree(pipelines / "tiny", folder)
    for file in (folder / "transformer" / WEIGHTS, folder / "text_encoder_2" / "model.safetensors"):
        whole = file.read_bytes()
        file.write_bytes(spoil(whole))
        failure = await refusing(tiny_flux_plan(folder, "broken"))
        assert isinstance(failure, CorruptCheckpointError)
        assert f"{file.parent.name}/{file.name}" in failure.message
        assert SPOILS[spoil] in failure.message
        file.write_bytes(whole)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("spoil", SPOILS)
async def test_a_broken_single_file_is_named(
    refusing: Any, pipelines: Path, denoisers: Path, kind: str, spoil: Callable[[bytes], bytes]
) -> None:
    broken = denoisers / f"{spoil.__name__}.{kind}"
    broken.write_bytes(spoil((denoisers / f"whole.{kind}").read_bytes()))
    failure = await refusing(plan_with_file(pipelines / "tiny", broken))
    assert isinstance(failure, CorruptCheckpointError)
    assert broken.name in failure.message
    assert SPOILS[spoil] in failure.message


@pytest.mark.parametrize("kind", KINDS)
async def test_a_single_file_that_lacks_a_tensor_is_refused(
    refusing: Any, pipelines: Path, denoisers: Path, kind: str
) -> None:
    tensors = load_file(denoisers / "whole.safetensors")
    del tensors["proj_out.weight"]
    file = denoisers / f"lacking.{kind}"
    write_gguf(file, tensors) if kind == "gguf" else save_file(tensors, file)
    failure = await refusing(plan_with_file(pipelines / "tiny", file))
    assert isinstance(failure, CorruptCheckpointError)
    assert f"{file.name} doesn't fit a FluxTransformer2DModel" in failure.message


async def test_weights_and_configuration_of_two_models_are_refused(refusing: Any, pipelines: Path) -> None:
    folder = pipelines / "two-layers-said"
    shutil.copytree(pipelines / "tiny", folder)
    path = folder / "transformer" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"num_layers": 2}))
    failure = await refusing(tiny_flux_plan(folder))
    assert isinstance(failure, CorruptCheckpointError)
    assert "transformer don't fit a FluxTransformer2DModel" in failure.message
    path.write_text(json.dumps(json.loads(path.read_text()) | {"num_layers": 1, "attention_head_dim": 32}))
    assert isinstance(await refusing(tiny_flux_plan(folder)), CorruptCheckpointError)


async def test_another_base_of_the_same_class_is_refused(refusing: Any, pipelines: Path) -> None:
    folder = pipelines / "guided"
    base = save_tiny_flux(folder, guidance_embeds=True).transformer
    plan = tiny_flux_plan(folder)
    denoiser = plan.components[2]
    denoiser.class_name = "FluxTransformer2DModel"
    own = sum(tensor.numel() for tensor in load_file(pipelines / "tiny" / "transformer" / WEIGHTS).values())
    denoiser.num_parameters = own
    failure = await refusing(plan)
    assert isinstance(failure, CorruptCheckpointError)
    assert "another model's weights" in failure.message
    assert failure.facts["found_parameters"] == str(sum(weight.numel() for weight in base.parameters()))


async def test_another_architecture_in_the_denoisers_place_is_refused(refusing: Any, pipelines: Path) -> None:
    other = save(pipelines / "other-family", z_image.build)
    folder = pipelines / "mixed"
    shutil.copytree(pipelines / "tiny", folder)
    shutil.rmtree(folder / "transformer")
    shutil.copytree(other / "transformer", folder / "transformer")
    plan = tiny_flux_plan(folder)
    # By the folder's own index, which still says FLUX; and by the plan, which does so too.
    assert isinstance(await refusing(plan), DarkroomError)
    plan.components[2].class_name = "FluxTransformer2DModel"
    failure = await refusing(plan)
    assert isinstance(failure, SourceRefusedError)
    assert "ZImageTransformer2DModel, where the plan expects a FluxTransformer2DModel" in failure.message


async def test_another_text_encoder_is_refused(refusing: Any, pipelines: Path) -> None:
    folder = pipelines / "wrong-encoder"
    shutil.copytree(pipelines / "tiny", folder)
    shutil.rmtree(folder / "text_encoder_2")
    shutil.copytree(folder / "text_encoder", folder / "text_encoder_2")
    plan = tiny_flux_plan(folder)
    assert isinstance(await refusing(plan), CorruptCheckpointError)
    plan.components[1].class_name = "T5EncoderModel"
    failure = await refusing(plan)
    assert isinstance(failure, SourceRefusedError)
    assert "text_encoder_2 is a CLIPTextModel, where the plan expects a T5EncoderModel" in failure.message


async def test_missing_weights_pickled_weights_and_another_pipeline_are_refused(refusing: Any, pipelines: Path) -> None:
    absent = tiny_flux_plan(pipelines / "tiny")
    absent.source.path = str(pipelines / "nowhere")
    assert isinstance(await refusing(absent), SourceRefusedError)
    pickled = pipelines / "pickled"
    shutil.copytree(pipelines / "tiny", pickled)
    (pickled / "vae" / WEIGHTS).rename(pickled / "vae" / "diffusion_pytorch_model.bin")
    assert "pickled" in (await refusing(tiny_flux_plan(pickled))).message
    other = tiny_flux_plan(pipelines / "tiny")
    other.pipeline_class = "StableDiffusionPipeline"
    assert isinstance(await refusing(other), SourceRefusedError)


async def test_a_source_that_fails_takes_its_fallback_and_says_so(painter: WorkerServer, pipelines: Path) -> None:
    folder = pipelines / "incomplete"
    shutil.copytree(pipelines / "tiny", folder)
    tensors = load_file(folder / "transformer" / WEIGHTS)
    del tensors["proj_out.weight"]
    save_file(tensors, folder / "transformer" / WEIGHTS)
    plan = tiny_flux_plan(folder)
    plan.fallbacks.add(trigger=plan_pb2.FALLBACK_TRIGGER_SOURCE_FAILED, plan=tiny_flux_plan(pipelines / "tiny"))
    events = await painter.load(plan)
    (taken,) = [event.fallback for event in events if event.HasField("fallback")]
    assert taken.trigger == plan_pb2.FALLBACK_TRIGGER_SOURCE_FAILED
    assert "proj_out.weight" in taken.error.message
    assert events[-1].loaded.plan.source.path == str(pipelines / "tiny")
    assert events[-1].loaded.plan.source.kind == checkpoint_pb2.CHECKPOINT_KIND_DENSE
