"""A denoiser from one file, safetensors or GGUF, and weights that come from nowhere: read by a configuration alone."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from darkroom.rpc.errors import InvalidRequestError, PlanRefusedError, SourceRefusedError
from darkroom.v1 import checkpoint_pb2, device_pb2
from tests.engines.painting import differences, failure_of, knobs_of, paint
from tests.engines.worker_server import WorkerServer
from tests.tiny import flux_2, hunyuanimage, z_image
from tests.tiny.flux import tiny_flux_plan
from tests.tiny.parts import plan_of, save
from tests.tiny.weight_files import plan_with_file, write_gguf

WEIGHTS = "transformer/diffusion_pytorch_model.safetensors"
RANDOM = checkpoint_pb2.CHECKPOINT_KIND_RANDOM
# Families whose tiny text encoders know all tokens of a stand-in, by how they take a prompt: a chat template, layers of
# a large language model, guiders and two text encoders.
RANDOM_FAMILIES = {"z-image": z_image, "flux.2-dev": flux_2, "hunyuanimage-2.1": hunyuanimage}


@pytest.fixture(scope="module")
def files(pipelines: Path) -> Path:
    """A pipeline without its denoiser's weights, and the denoiser in files of both kinds."""
    folder = pipelines / "files"
    shutil.copytree(pipelines / "tiny", folder / "rest")
    (folder / "rest" / WEIGHTS).rename(folder / "denoiser.safetensors")
    # What a file calls its architecture is not asked: others call the same one otherwise.
    write_gguf(folder / "denoiser.gguf", load_file(folder / "denoiser.safetensors"), architecture="pig")
    return folder


# Q8_0 rounds weights to 8 bits; a file of the same weights aligns them elsewhere.
@pytest.mark.parametrize(("kind", "tolerance"), [("safetensors", 1), ("gguf", 24)])
async def test_a_denoiser_from_one_file_paints_what_the_folder_paints(
    painter: WorkerServer, pipelines: Path, files: Path, kind: str, tolerance: int
) -> None:
    await painter.load(tiny_flux_plan(pipelines / "tiny"))
    expected = await paint(painter, steps=3)
    loaded = (await painter.load(plan_with_file(files / "rest", files / f"denoiser.{kind}")))[-1].loaded
    assert f"transformer={'gguf' if kind == 'gguf' else 'none'}" in knobs_of(loaded)["scheme"].engaged
    picture = await paint(painter, steps=3)
    assert differences(picture, expected).max() <= tolerance
    assert (await paint(painter, steps=3)).data == picture.data


async def test_a_file_in_float8_stays_in_float8_and_paints_what_its_numbers_paint(
    painter: WorkerServer, files: Path
) -> None:
    dense = load_file(files / "denoiser.safetensors")
    rounded = {name: tensor.to(torch.float8_e4m3fn) for name, tensor in dense.items()}
    save_file(rounded, files / "float8.safetensors")
    save_file({name: tensor.float() for name, tensor in rounded.items()}, files / "widened.safetensors")
    widened = (await painter.load(plan_with_file(files / "rest", files / "widened.safetensors")))[-1].loaded
    expected = await paint(painter, steps=3)
    kept = (await painter.load(plan_with_file(files / "rest", files / "float8.safetensors")))[-1].loaded
    assert (await paint(painter, steps=3)).data == expected.data
    assert "transformer=fp8_storage" in knobs_of(kept)["scheme"].engaged
    assert "stay in float8, as the file has them" in knobs_of(kept)["scheme"].reason
    num_numbers = sum(tensor.numel() for tensor in dense.values())
    # Three of four bytes of nearly all of them.
    assert widened.measured_bytes - kept.measured_bytes > 2.5 * num_numbers


async def test_weights_with_scales_beside_them_are_refused_by_name(painter: WorkerServer, files: Path) -> None:
    rounded = {
        name: tensor.to(torch.float8_e4m3fn) for name, tensor in load_file(files / "denoiser.safetensors").items()
    }
    save_file(rounded | {"proj_out.scale_weight": torch.ones(())}, files / "scaled.safetensors")
    failure = await failure_of(painter.load(plan_with_file(files / "rest", files / "scaled.safetensors")))
    assert isinstance(failure, SourceRefusedError)
    assert "proj_out.scale_weight" in failure.message


async def test_a_type_of_gguf_that_nobody_unpacks_is_refused_by_name(painter: WorkerServer, files: Path) -> None:
    write_gguf(files / "ternary.gguf", {"a.weight": torch.ones(16, 256)}, "TQ1_0")
    failure = await failure_of(painter.load(plan_with_file(files / "rest", files / "ternary.gguf")))
    assert isinstance(failure, SourceRefusedError)
    assert "holds TQ1_0" in failure.message


async def test_files_outside_the_allowed_folders_and_kinds_that_contradict_are_refused(
    painter: WorkerServer, files: Path, tmp_path: Path
) -> None:
    shutil.copy(files / "denoiser.gguf", tmp_path / "elsewhere.gguf")
    for path in (tmp_path / "elsewhere.gguf", files / "missing.gguf"):
        assert isinstance(await failure_of(painter.load(plan_with_file(files / "rest", path))), SourceRefusedError)
    plan = plan_with_file(files / "rest", files / "denoiser.safetensors")
    plan.components[2].scheme = device_pb2.SCHEME_GGUF
    assert isinstance(await failure_of(painter.load(plan)), PlanRefusedError)


async def test_random_weights_need_configurations_alone_and_are_told_as_such(
    painter: WorkerServer, pipelines: Path
) -> None:
    bare = pipelines / "bare"
    shutil.copytree(pipelines / "tiny", bare, ignore=shutil.ignore_patterns("*.safetensors"))
    plan = tiny_flux_plan(pipelines / "tiny")
    plan.source.kind, plan.source.path = RANDOM, str(bare)
    loaded = (await painter.load(plan))[-1].loaded
    assert "no picture shows anything" in knobs_of(loaded)["weights"].reason
    assert loaded.measured_bytes == pytest.approx(loaded.planned_bytes, rel=0.15)
    first = await paint(painter, steps=3)
    await painter.load(tiny_flux_plan(pipelines / "tiny"))
    await painter.load(plan)
    assert (await paint(painter, steps=3)).data == first.data
    (bare / "vae" / "config.json").unlink()
    plan.model = "another"
    assert isinstance(await failure_of(painter.load(plan)), SourceRefusedError)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("model", RANDOM_FAMILIES)
async def test_random_weights_need_no_folder_where_the_plan_has_the_configurations(
    painter: WorkerServer, pipelines: Path, model: str
) -> None:
    module = RANDOM_FAMILIES[model]
    folder = save(pipelines / f"random-{model}", getattr(module, "build_dev", None) or module.build)
    plan = plan_of(model, folder)
    plan.source.CopyFrom(checkpoint_pb2.CheckpointSource(kind=RANDOM, repo_id="nobody/has-this"))
    for part in plan.components:
        part.class_name = json.loads((folder / "model_index.json").read_text())[part.name][1]
        part.configuration = (folder / part.name / "config.json").read_text()
    shutil.rmtree(folder)
    loaded = (await painter.load(plan))[-1].loaded
    stand_ins = knobs_of(loaded)["stand_ins"]
    assert {"scheduler", "tokenizer"} <= set(stand_ins.engaged.split(", "))
    assert "nothing is read from a repository" in stand_ins.reason
    assert loaded.measured_bytes == pytest.approx(loaded.planned_bytes, rel=0.15)
    first, again = [await paint(painter, model=model, steps=2) for _ in range(2)]
    assert first.data == again.data
    plan.components[0].configuration = ""
    failure = await failure_of(painter.load(plan))
    assert isinstance(failure, InvalidRequestError)
    assert f"plan.components.{plan.components[0].name}" in failure.violations
