"""A denoiser from one file, safetensors or GGUF: read by the pipeline's configuration, and broken ones are named."""

from __future__ import annotations

import io
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import gguf
import grpc
import numpy as np
import pytest
import pytest_asyncio
from PIL import Image
from safetensors.torch import load_file

from darkroom.rpc.errors import CorruptCheckpointError, DarkroomError, PlanRefusedError, SourceRefusedError
from darkroom.rpc.status import from_rpc_error
from darkroom.v1 import checkpoint_pb2, device_pb2, plan_pb2
from tests.engines.worker_server import WorkerServer, error_of, file_of, item, serve_worker
from tests.tiny.flux import save_tiny_flux, tiny_flux_plan

pytestmark = pytest.mark.asyncio(loop_scope="module")
WEIGHTS = "transformer/diffusion_pytorch_model.safetensors"
KINDS = {"gguf": checkpoint_pb2.CHECKPOINT_KIND_GGUF, "safetensors": checkpoint_pb2.CHECKPOINT_KIND_SINGLE_FILE}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A whole pipeline, one without its denoiser's weights, and the denoiser in files of both kinds."""
    folder = tmp_path_factory.mktemp("models")
    save_tiny_flux(folder / "tiny")
    shutil.copytree(folder / "tiny", folder / "rest")
    (folder / "rest" / WEIGHTS).rename(folder / "denoiser.safetensors")
    write_gguf(folder / "denoiser.gguf", load_file(folder / "denoiser.safetensors"))
    return folder


def write_gguf(path: Path, tensors: dict[str, Any]) -> None:
    """Linear weights in Q8_0, the rest in float32: what diffusers reads."""
    writer = gguf.GGUFWriter(path, "flux")
    for name, tensor in tensors.items():
        values = tensor.float().numpy()
        is_linear = name.endswith(".weight") and values.ndim == 2 and values.shape[1] % 32 == 0
        if is_linear:
            kind = gguf.GGMLQuantizationType.Q8_0
            writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)
        else:
            writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def worker(models: Path) -> AsyncIterator[WorkerServer]:
    async with serve_worker(
        "services.worker.engine",
        DARKROOM_WORKER_MODEL_PATHS=models,
        DARKROOM_WORKER_THREADS=1,
        DARKROOM_WORKER_DEVICE="cpu",
    ) as server:
        yield server


def plan_with(models: Path, file: Path, kind: str) -> plan_pb2.Plan:
    plan = tiny_flux_plan(models / "rest")
    part = plan.components[2]
    part.source.kind, part.source.path = KINDS[kind], str(file)
    if kind == "gguf":
        part.scheme = device_pb2.SCHEME_GGUF
    part.weight_bytes = file.stat().st_size if file.exists() else 0
    return plan


async def paint(worker: WorkerServer, job: str) -> Any:
    events = await worker.generate(f"run-{job}", [item(job, steps=3)], model="tiny")
    assert error_of(events, job) == ""
    return np.asarray(Image.open(io.BytesIO(file_of(events, job))), dtype=int)


async def failure_of(call: Any) -> DarkroomError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return from_rpc_error(caught.value)


# Q8_0 rounds weights to 8 bits; a file of the same weights aligns them elsewhere.
@pytest.mark.parametrize(("kind", "tolerance"), [("safetensors", 1), ("gguf", 24)])
async def test_a_denoiser_from_one_file_paints_what_the_folder_paints(
    worker: WorkerServer, models: Path, kind: str, tolerance: int
) -> None:
    await worker.load(tiny_flux_plan(models / "tiny"))
    expected = await paint(worker, f"folder-{kind}")
    loaded = (await worker.load(plan_with(models, models / f"denoiser.{kind}", kind)))[-1].loaded
    engaged = {knob.knob: knob.engaged for knob in loaded.engagements}
    assert f"transformer={'gguf' if kind == 'gguf' else 'none'}" in engaged["scheme"]
    picture = await paint(worker, f"file-{kind}")
    assert np.abs(picture - expected).max() <= tolerance
    assert (await paint(worker, f"again-{kind}") == picture).all()


def _html(content: bytes) -> bytes:
    return b"<!DOCTYPE html><html>" * 40


def _pointer(content: bytes) -> bytes:
    return b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 123\n"


def _truncated(content: bytes) -> bytes:
    return content[:-2000]


def _garbled(content: bytes) -> bytes:
    return content[:8] + b"\xff" * 16 + content[24:]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("spoil", [_html, _pointer, _truncated, _garbled])
async def test_a_broken_file_is_named_before_anything_is_evicted(
    worker: WorkerServer, models: Path, kind: str, spoil: Any
) -> None:
    await worker.load(tiny_flux_plan(models / "tiny"))
    broken = models / f"broken{spoil.__name__}.{kind}"
    broken.write_bytes(spoil((models / f"denoiser.{kind}").read_bytes()))
    failure = await failure_of(worker.load(plan_with(models, broken, kind)))
    assert isinstance(failure, CorruptCheckpointError)
    assert broken.name in failure.message
    assert (await worker.status()).loaded.plan.source.path == str(models / "tiny")


async def test_a_file_that_lacks_a_tensor_is_refused(worker: WorkerServer, models: Path) -> None:
    tensors = load_file(models / "denoiser.safetensors")
    del tensors["transformer_blocks.0.attn.to_q.weight"]
    write_gguf(models / "lacking.gguf", tensors)
    failure = await failure_of(worker.load(plan_with(models, models / "lacking.gguf", "gguf")))
    assert isinstance(failure, CorruptCheckpointError)
    assert "lacking.gguf doesn't fit a FluxTransformer2DModel" in failure.message


async def test_files_outside_the_allowed_folders_and_kinds_that_contradict_are_refused(
    worker: WorkerServer, models: Path, tmp_path: Path
) -> None:
    shutil.copy(models / "denoiser.gguf", tmp_path / "elsewhere.gguf")
    for path in (tmp_path / "elsewhere.gguf", models / "missing.gguf"):
        assert isinstance(await failure_of(worker.load(plan_with(models, path, "gguf"))), SourceRefusedError)
    plan = plan_with(models, models / "denoiser.safetensors", "safetensors")
    plan.components[2].scheme = device_pb2.SCHEME_GGUF
    assert isinstance(await failure_of(worker.load(plan)), PlanRefusedError)


async def test_random_weights_need_configurations_alone_and_are_told_as_such(
    worker: WorkerServer, models: Path
) -> None:
    shutil.copytree(models / "tiny", models / "bare", ignore=shutil.ignore_patterns("*.safetensors"))
    plan = tiny_flux_plan(models / "tiny")
    plan.source.kind, plan.source.path = checkpoint_pb2.CHECKPOINT_KIND_RANDOM, str(models / "bare")
    loaded = (await worker.load(plan))[-1].loaded
    engaged = {knob.knob: knob for knob in loaded.engagements}
    assert "no picture shows anything" in engaged["weights"].reason
    assert loaded.measured_bytes == pytest.approx(loaded.planned_bytes, rel=0.15)
    first = await paint(worker, "random")
    await worker.load(tiny_flux_plan(models / "tiny"))
    await worker.load(plan)
    assert (await paint(worker, "random-again") == first).all()
    (models / "bare" / "vae" / "config.json").unlink()
    plan.model = "another"
    assert isinstance(await failure_of(worker.load(plan)), SourceRefusedError)
