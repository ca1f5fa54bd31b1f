"""Every image family that has hosted artifacts, tiny: built, assembled by the worker's own line, compared per tensor.

The reference is written out here: plain torchao on a dense load, and a plain cast.
"""

from __future__ import annotations

import importlib
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torchao.quantization.quant_api as torchao_api
from torch import nn
from torchao.float8.inference import Float8MMConfig
from torchao.quantization import (
    Float8DynamicActivationFloat8WeightConfig,
    Int8DynamicActivationInt8WeightConfig,
    PerRow,
    quantize_,
)
from torchao.quantization.quantize_.common import KernelPreference

from darkroom.artifacts.folder import open_folder
from darkroom.artifacts.gates import Gates
from darkroom.artifacts.names import MANIFEST_SUFFIX, stem_of
from darkroom.artifacts.store import ArtifactStore
from darkroom.rpc.errors import CancelledError, CorruptCheckpointError
from darkroom.storage import open_store
from darkroom.v1 import checkpoint_pb2, device_pb2, plan_pb2
from services.worker.config import WorkerSettings
from services.worker.engine.assembly.line import assemble, dismantle
from services.worker.engine.assembly.stage import Assembly
from services.worker.engine.assembly.store_copies import copy_from_store
from services.worker.engine.reporting import LoadReporter
from tests.tiny import flux_2, hidream, hunyuanimage, krea_2, lumina_2, qwen_image, z_image
from tests.tiny.artifact import build_artifact
from tests.tiny.flux import save_tiny_flux
from tests.tiny.parts import plan_of, save

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning", "ignore::FutureWarning")
INT8, FP8, STORAGE = device_pb2.SCHEME_INT8, device_pb2.SCHEME_FP8, device_pb2.SCHEME_FP8_STORAGE
LOCAL = checkpoint_pb2.CHECKPOINT_KIND_LOCAL_PREQUANTISED
CPU, BFLOAT16 = torch.device("cpu"), torch.bfloat16
LEFT_DENSE = ("norm", "embed")
DENOISER_RECIPE = plan_pb2.QuantisationRecipe(
    min_features=16,
    feature_multiple=16,
    exclude_names=LEFT_DENSE,
    activation_floor=1e-12,
    requires_bfloat16=True,
    fast_accumulate=True,
)
TEXT_RECIPE = plan_pb2.QuantisationRecipe(exclude_names=LEFT_DENSE, takes_convolutions=True)
FAMILIES: dict[str, Callable[[Path], Any]] = {
    "flux.1-dev": save_tiny_flux,
    "z-image-turbo": lambda folder: save(folder, z_image.build),
    "qwen-image": lambda folder: save(folder, qwen_image.build),
    "krea-2-turbo": lambda folder: save(folder, krea_2.build),
    "lumina-image-2.0": lambda folder: save(folder, lumina_2.build),
    "flux.2-klein-4b": lambda folder: save(folder, flux_2.build_klein),
    "flux.2-dev": lambda folder: save(folder, flux_2.build_dev),
    "hunyuanimage-2.1": lambda folder: save(folder, hunyuanimage.build),
    "hidream-i1-full": lambda folder: save(folder, hidream.build),
}

# With layers that float8 takes and leaves; the builder's own gate compares every family in it.
IN_FP8 = ("flux.1-dev", "z-image-turbo", "lumina-image-2.0", "qwen-image")
CASES = [*((model, INT8) for model in FAMILIES), *((model, FP8) for model in IN_FP8)]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.fixture
def float8_on_a_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    """torchao refuses to make such tensors on a processor, where its kernels run all the same."""
    monkeypatch.setattr(torchao_api, "_check_hardware_support", lambda *a, **k: None)


def class_of(folder: Path, component: str) -> Any:
    library, name = json.loads((folder / "model_index.json").read_text())[component]
    return getattr(importlib.import_module(library), name)


def with_artifacts(model: str, folder: Path, store: Path, scheme: int) -> plan_pb2.Plan:
    """A plan whose denoiser comes from an artifact that is built here; in int8 its text encoders too."""
    plan = plan_of(model, folder)
    plan.compute_type = plan_pb2.COMPUTE_TYPE_BFLOAT16
    for part in plan.components:
        part.compute_type = plan_pb2.COMPUTE_TYPE_BFLOAT16
        is_text = part.role == plan_pb2.COMPONENT_ROLE_TEXT_ENCODER
        if part.role == plan_pb2.COMPONENT_ROLE_VAE or (is_text and scheme != INT8):
            continue
        part.scheme, recipe = (STORAGE, TEXT_RECIPE) if is_text else (scheme, DENOISER_RECIPE)
        part.recipe.CopyFrom(recipe)
        kind = class_of(folder, part.name)
        part.class_name = kind.__name__
        name = stem_of(model, part.name, part.scheme) + MANIFEST_SUFFIX
        if not (store / name).is_file():
            build_artifact(store, folder / part.name, kind, part.name, part.scheme, recipe, base=model)
        source = checkpoint_pb2.CheckpointSource(kind=LOCAL, path=str(store), file=name, bases=[model])
        part.source.CopyFrom(source)
    return plan


def load(plan: plan_pb2.Plan, models: Path, cache: Path) -> Assembly:
    settings = WorkerSettings(worker_model_paths=str(models), worker_cache_dir=cache)
    return assemble(plan, settings, CPU, LoadReporter(lambda event: None, lambda: False))


def plainly_quantised(kind: Any, folder: Path, scheme: int) -> nn.Module:
    """A dense load, quantised by torchao itself, or cast tensor by tensor."""
    module: nn.Module = kind.from_pretrained(folder, dtype=BFLOAT16).eval()
    if scheme == STORAGE:
        # An output layer that shares its weight with an embedding stays dense, as embeddings do.
        embedded = [layer.weight for layer in module.modules() if isinstance(layer, nn.Embedding)]
        for name, layer in module.named_modules():
            if any(getattr(layer, "weight", None) is weight for weight in embedded):
                continue
            is_taken = isinstance(layer, (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d))
            if is_taken and not any(part in name for part in LEFT_DENSE):
                for parameter in layer.parameters(recurse=False):
                    parameter.data = parameter.data.to(torch.float8_e4m3fn)
        return module
    configs = {
        INT8: Int8DynamicActivationInt8WeightConfig(set_inductor_config=False),
        FP8: Float8DynamicActivationFloat8WeightConfig(
            granularity=PerRow(),
            mm_config=Float8MMConfig(use_fast_accum=True),
            activation_value_lb=1e-12,
            kernel_preference=KernelPreference.TORCH,
            set_inductor_config=False,
        ),
    }

    def takes(layer: nn.Module, name: str) -> bool:
        if not isinstance(layer, nn.Linear) or any(part in name for part in LEFT_DENSE):
            return False
        rows, columns = layer.weight.shape
        is_even = rows % 16 == 0 and columns % 16 == 0
        return is_even and min(rows, columns) >= 16 and layer.weight.dtype == BFLOAT16

    quantize_(module, configs[scheme], filter_fn=takes)
    return module


def tensors_of(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    yield from module.named_parameters(remove_duplicate=False)
    yield from module.named_buffers()
    # Tables that some classes keep beside their buffers.
    for name, layer in module.named_modules():
        for attribute, value in vars(layer).items():
            if isinstance(value, torch.Tensor):
                yield f"{name}.{attribute}", value


def assert_same(name: str, found: torch.Tensor, right: torch.Tensor) -> None:
    found, right = found.detach(), right.detach()
    assert type(found) is type(right), name
    assert (found.dtype, found.shape) == (right.dtype, right.shape), name
    if hasattr(right, "__tensor_flatten__"):
        (parts, fields), (right_parts, right_fields) = found.__tensor_flatten__(), right.__tensor_flatten__()
        assert (parts, fields) == (right_parts, right_fields), name
        assert {key: type(value) for key, value in fields.items()} == {
            key: type(value) for key, value in right_fields.items()
        }
        for part in parts:
            assert_same(f"{name}.{part}", getattr(found, part), getattr(right, part))
    else:
        # Bytes, so that NaN equals itself and -0 is not 0.
        bits = [tensor.contiguous().reshape(-1).view(torch.uint8) for tensor in (found, right)]
        assert torch.equal(*bits), name


@pytest.mark.usefixtures("float8_on_a_processor")
@pytest.mark.parametrize(("model", "scheme"), CASES)
def test_a_loaded_artifact_is_bit_for_bit_what_plain_torchao_makes(
    models: Path, tmp_path: Path, model: str, scheme: int
) -> None:
    folder = models / model
    if not folder.is_dir():
        FAMILIES[model](folder)
    plan = with_artifacts(model, folder, models / f"{model}-artifacts", scheme)
    made = load(plan, models, tmp_path)
    try:
        for part in plan.components:
            if not part.HasField("source"):
                continue
            right = dict(tensors_of(plainly_quantised(class_of(folder, part.name), folder / part.name, part.scheme)))
            found = dict(tensors_of(made.parts[part.name]))
            assert found.keys() == right.keys()
            for name in right:
                assert_same(f"{part.name}.{name}", found[name], right[name])
        told = next(knob for knob in made.engagements if knob.knob == "scheme")
        assert told.reason.count("artifact ") == sum(part.HasField("source") for part in plan.components)
    finally:
        dismantle(made)


def test_an_encoder_of_another_repository_keeps_its_tokenizer_from_there(models: Path, tmp_path: Path) -> None:
    model, folder = "hidream-i1-full", models / "hidream-own"
    FAMILIES[model](folder)
    plan = with_artifacts(model, folder, models / "hidream-own-artifacts", INT8)
    llama = models / "llama"
    shutil.move(folder / "text_encoder_4", llama)
    shutil.copytree(folder / "tokenizer_4", llama, dirs_exist_ok=True)
    for file in llama.glob("*.safetensors"):
        file.unlink()
    part = next(part for part in plan.components if part.name == "text_encoder_4")
    part.dense_source.CopyFrom(
        checkpoint_pb2.CheckpointSource(kind=checkpoint_pb2.CHECKPOINT_KIND_DENSE, path=str(llama))
    )
    made = load(plan, models, tmp_path)
    assert made.pipeline.tokenizer_4.name_or_path == str(llama)
    assert made.pipeline.text_encoder_4.dtype == BFLOAT16
    dismantle(made)


class Told(LoadReporter):
    """Keeps what a load says, and stops it after some bytes."""

    def __init__(self, stop_at: int | None = None) -> None:
        super().__init__(lambda event: None, self._is_stopped)
        self._stop_at = stop_at
        self.fetched = [0]

    def progress(self, progress: Any) -> None:
        self.fetched.append(progress.completed)

    def _is_stopped(self) -> bool:
        return self._stop_at is not None and self.fetched[-1] >= self._stop_at


def test_an_artifact_of_a_store_elsewhere_is_copied_once_and_a_damaged_one_is_not_kept(
    models: Path, tmp_path: Path
) -> None:
    folder = models / "copied"
    save_tiny_flux(folder)
    plan = with_artifacts("flux.1-dev", folder, models / "copied-artifacts", INT8)
    part = next(part for part in plan.components if part.name == "transformer")
    made = open_folder(models / "copied-artifacts", part.source.file.removesuffix(MANIFEST_SUFFIX))
    remote = ArtifactStore(open_store(tmp_path / "remote"))
    part.source.artifact_id = remote.add(made.manifest, made.paths)
    remote.pass_gates(made.manifest, Gates(made.manifest.id, [{"name": "load", "passed": True}]))
    with pytest.raises(CancelledError):
        copy_from_store(remote, part, tmp_path / "copies", Told(stop_at=0))
    told = Told()
    copied = copy_from_store(remote, part, tmp_path / "copies", told)
    assert told.fetched[-1] == made.manifest.size_bytes
    assert copied.manifest == made.manifest
    again = Told()
    copy_from_store(remote, part, tmp_path / "copies", again)
    assert again.fetched == [0]
    (blob,) = (tmp_path / "remote" / "blobs").iterdir()
    content = bytearray(blob.read_bytes())
    content[-1] ^= 1
    blob.write_bytes(content)
    with pytest.raises(CorruptCheckpointError, match="damaged"):
        copy_from_store(remote, part, tmp_path / "others", Told())
    assert not list((tmp_path / "others").rglob("blobs/*"))
