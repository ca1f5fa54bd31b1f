"""Components of every tiny family: built layer by layer, loaded by the artifact's reader, compared with the runtime."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import struct
from pathlib import Path

import pytest
import torch
from diffusers import WanTransformer3DModel
from safetensors.torch import load_file, save_file

from darkroom.artifacts.manifest import Manifest
from darkroom.artifacts.store import ArtifactStore
from darkroom.rpc.errors import CorruptCheckpointError, SourceRefusedError
from darkroom.storage import open_store
from darkroom.v1 import checkpoint_pb2, device_pb2
from services.checkpoint_builder.making.equivalence import adopt, candidates, same_source
from tests.tiny.families import FAMILIES
from tests.tiny.parts import save
from tests.unit.checkpoint_builder.making import CATALOGUE, built, identity, opened, task_of

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
INT8, FP8, STORAGE = device_pb2.SCHEME_INT8, device_pb2.SCHEME_FP8, device_pb2.SCHEME_FP8_STORAGE
FLUX, OTHER_FLUX = "flux.1-schnell", "flux.1-dev"


@pytest.fixture(scope="module")
def pipelines(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("pipelines")


def folder_of(pipelines: Path, model: str) -> Path:
    folder = pipelines / model
    return folder if folder.exists() else save(folder, FAMILIES[model][0])


def files_of(manifest: Manifest, folder: Path) -> dict[str, str]:
    return {file.name: hashlib.sha256((folder / file.name).read_bytes()).hexdigest() for file in manifest.files}


@pytest.mark.parametrize("model", FAMILIES)
def test_every_component_of_a_family_is_what_the_runtime_makes(model: str, pipelines: Path, tmp_path: Path) -> None:
    folder = folder_of(pipelines, model)
    index = json.loads((folder / "model_index.json").read_text())
    num_quantised = 0
    for name, part in CATALOGUE.find(model).components.items():
        schemes = {"transformer": (INT8, FP8, STORAGE), "vae": ()}.get(name, (STORAGE,))
        for scheme in schemes if name in index else ():
            task, settings = task_of(model, folder, scheme, name)
            if part.source is not None:
                # Of its own repository; here it lies with the rest.
                task.parts[0].source.path = str(folder)
            target = tmp_path / f"{name}-{scheme}"
            manifest = built(task, settings, target)
            check = identity(task, settings, manifest, target)
            assert check.has_passed, check.measured
            num_quantised += manifest.num_quantised
    assert num_quantised > 0


def test_the_same_source_gives_the_same_bytes(pipelines: Path, tmp_path: Path) -> None:
    folder = folder_of(pipelines, FLUX)
    made = []
    for place in ("first", "second"):
        task, settings = task_of(FLUX, folder, INT8)
        made.append(built(task, settings, tmp_path / place))
    assert made[0].data == made[1].data
    assert files_of(made[0], tmp_path / "first") == files_of(made[1], tmp_path / "second")


def test_where_the_source_lies_does_not_matter_and_what_it_holds_does(pipelines: Path, tmp_path: Path) -> None:
    folder = folder_of(pipelines, FLUX)
    copy = tmp_path / "elsewhere" / "copy"
    save(copy, FAMILIES[FLUX][0])
    task, settings = task_of(FLUX, folder, INT8)
    first = built(task, settings, tmp_path / "first")
    task, settings = task_of(FLUX, copy, INT8)
    assert built(task, settings, tmp_path / "second").id == first.id
    weights = copy / "transformer" / "diffusion_pytorch_model.safetensors"
    tensors = load_file(weights)
    tensors["proj_out.bias"][0] += 1
    save_file(tensors, weights, {"format": "pt"})
    other = built(*task_of(FLUX, copy, INT8), tmp_path / "third")
    assert other.source_sha256 != first.source_sha256
    assert other.id != first.id


def test_two_bases_with_a_byte_identical_encoder_share_its_files(pipelines: Path, tmp_path: Path) -> None:
    folder = folder_of(pipelines, FLUX)
    store = ArtifactStore(open_store(str(tmp_path / "store")))
    task, settings = task_of(FLUX, folder, STORAGE, "text_encoder_2")
    first = built(task, settings, tmp_path / "first")
    store.add(first, {file.name: tmp_path / "first" / file.name for file in first.files})
    task, settings = task_of(OTHER_FLUX, folder, STORAGE, "text_encoder_2")
    dense = opened(task, settings)
    found = same_source(candidates(store, dense), first.source_sha256)
    assert found is not None
    (tmp_path / "second").mkdir()
    second = adopt(store, found, task, dense, tmp_path / "second")
    assert second.base == "black-forest-labs/FLUX.1-dev"
    assert [file.sha256 for file in second.files] == [file.sha256 for file in first.files]
    assert [file.name for file in second.files] == ["FLUX.1-dev-text_encoder_2-FP8.safetensors"]
    assert os.path.samefile(
        tmp_path / "second" / second.files[0].name, store.store.local_path(f"blobs/{first.files[0].sha256}")
    )
    assert identity(task, settings, second, tmp_path / "second").has_passed


def test_another_encoder_is_not_taken_for_the_same(pipelines: Path, tmp_path: Path) -> None:
    store = ArtifactStore(open_store(str(tmp_path / "store")))
    task, settings = task_of(FLUX, folder_of(pipelines, FLUX), STORAGE, "text_encoder_2")
    first = built(task, settings, tmp_path / "first")
    store.add(first, {file.name: tmp_path / "first" / file.name for file in first.files})
    other = save(tmp_path / "other" / "pipeline", FAMILIES[FLUX][0], seed=1)
    task, settings = task_of(OTHER_FLUX, other, STORAGE, "text_encoder_2")
    assert len(candidates(store, opened(task, settings))) == 1
    assert (
        same_source(candidates(store, opened(task, settings)), built(task, settings, tmp_path / "b").source_sha256)
        is None
    )


def test_a_single_file_goes_through_the_runtimes_own_path(pipelines: Path, tmp_path: Path) -> None:
    folder = folder_of(pipelines, FLUX)
    file = tmp_path / "flux.safetensors"
    save_file(load_file(folder / "transformer" / "diffusion_pytorch_model.safetensors"), file, {"format": "pt"})
    source = checkpoint_pb2.CheckpointSource(kind=checkpoint_pb2.CHECKPOINT_KIND_SINGLE_FILE, path=str(file))
    task, settings = task_of(FLUX, folder, INT8, source=source)
    # Its configuration is the pipeline's, which would be fetched.
    task.variant.source.path = str(folder)
    try:
        manifest = built(task, settings, tmp_path / "made")
        assert identity(task, settings, manifest, tmp_path / "made").has_passed
    finally:
        task.variant.source.repo_id = task.base
    dense = built(*task_of(FLUX, folder, INT8), tmp_path / "dense")
    assert [item.sha256 for item in manifest.files] == [item.sha256 for item in dense.files]


def test_a_changed_tensor_fails_the_gate_by_name(pipelines: Path, tmp_path: Path) -> None:
    folder = save(tmp_path / "source" / "pipeline", FAMILIES[FLUX][0])
    task, settings = task_of(FLUX, folder, INT8)
    manifest = built(task, settings, tmp_path / "made")
    weights = folder / "transformer" / "diffusion_pytorch_model.safetensors"
    tensors = load_file(weights)
    tensors["x_embedder.bias"][0] = -tensors["x_embedder.bias"][0] - 1
    save_file(tensors, weights, {"format": "pt"})
    check = identity(task, settings, manifest, tmp_path / "made")
    assert not check.has_passed
    assert "1 differ" in check.measured
    assert "x_embedder.bias" in check.measured


@pytest.mark.parametrize(
    ("damage", "error"),
    [("missing", SourceRefusedError), ("truncated", CorruptCheckpointError), ("lacking", CorruptCheckpointError)],
)
def test_a_broken_source_is_told_before_anything_is_written(
    damage: str, error: type[Exception], tmp_path: Path
) -> None:
    folder = save(tmp_path / "source" / "pipeline", FAMILIES[FLUX][0])
    weights = folder / "transformer" / "diffusion_pytorch_model.safetensors"
    if damage == "missing":
        weights.unlink()
    elif damage == "truncated":
        weights.write_bytes(weights.read_bytes()[:-100])
    else:
        tensors = load_file(weights)
        del tensors["proj_out.weight"]
        save_file(tensors, weights, {"format": "pt"})
    with pytest.raises(error):
        opened(*task_of(FLUX, folder, INT8))


def test_weights_in_another_type_are_held_as_the_runtime_holds_them(pipelines: Path, tmp_path: Path) -> None:
    folder = folder_of(pipelines, FLUX)
    dense = opened(*task_of(FLUX, folder, INT8))
    file = next((folder / "transformer").glob("*.safetensors"))
    with file.open("rb") as opened_file:
        (length,) = struct.unpack("<Q", opened_file.read(8))
        header = json.loads(opened_file.read(length))
    assert header["proj_out.weight"]["dtype"] == "F32"
    assert dense.tensors.get("proj_out.weight").dtype == torch.bfloat16


def test_a_source_with_a_name_of_its_own_never_stands_in_for_the_catalogues(pipelines: Path, tmp_path: Path) -> None:
    folder = folder_of(pipelines, FLUX)
    task, settings = task_of(FLUX, folder, INT8, base="me/my-flux")
    manifest = built(task, settings, tmp_path / "made")
    assert (manifest.base, manifest.source) == ("me/my-flux", "local")
    assert [file.name for file in manifest.files] == ["my-flux-INT8.safetensors"]
    copy = built(*task_of(FLUX, folder, INT8), tmp_path / "copy")
    assert copy.base == "black-forest-labs/FLUX.1-schnell"
    assert [file.sha256 for file in copy.files] == [file.sha256 for file in manifest.files]


def test_two_experts_become_a_pair_of_checkpoints(tmp_path: Path) -> None:
    model, folder = "wan2.2-t2v-a14b", tmp_path / "source" / "pipeline"
    for place, name in enumerate(("transformer", "transformer_2")):
        torch.manual_seed(place)
        expert = WanTransformer3DModel(
            num_attention_heads=2,
            attention_head_dim=16,
            in_channels=4,
            out_channels=4,
            text_dim=32,
            freq_dim=32,
            ffn_dim=64,
            num_layers=1,
        )
        expert.save_pretrained(folder / name)
    index = {name: ["diffusers", "WanTransformer3DModel"] for name in ("transformer", "transformer_2")}
    (folder / "model_index.json").write_text(json.dumps({"_class_name": "WanPipeline", **index}))
    both, settings = task_of(model, folder, INT8)
    made = []
    for part in both.parts:
        task = dataclasses.replace(both, parts=(part,))
        made.append(built(task, settings, tmp_path / "made"))
        assert identity(task, settings, made[-1], tmp_path / "made").has_passed
    names = [file.name for manifest in made for file in manifest.files]
    assert names == ["Wan2.2-T2V-A14B-Diffusers-INT8.safetensors", "Wan2.2-T2V-A14B-Diffusers-INT8-2.safetensors"]
    assert made[0].source_sha256 != made[1].source_sha256
    assert all(manifest.num_quantised > 0 for manifest in made)
