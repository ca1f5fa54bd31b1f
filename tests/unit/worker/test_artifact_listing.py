"""Which artifacts a worker tells of, and what it makes of a cache that lacks what artifacts replaced."""

from __future__ import annotations

import json
from pathlib import Path

import huggingface_hub.constants
import pytest

from darkroom.artifacts.gates import Gates
from darkroom.artifacts.manifest import Manifest
from darkroom.artifacts.store import ArtifactStore
from darkroom.knowledge import load_catalogue
from darkroom.storage import open_store
from darkroom.v1 import checkpoint_pb2, device_pb2, plan_pb2
from services.worker.artifact_listing import ArtifactListing
from services.worker.config import WorkerSettings
from services.worker.inspection import Inspector
from tests.unit.artifacts.describing import small_manifest

CATALOGUE = load_catalogue()
FP8 = device_pb2.SCHEME_FP8
HOSTED, LOCAL = checkpoint_pb2.CHECKPOINT_KIND_HOSTED_PREQUANTISED, checkpoint_pb2.CHECKPOINT_KIND_LOCAL_PREQUANTISED
EMPTY_WEIGHTS = (2).to_bytes(8, "little") + b"{}"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "hub"


def snapshot(cache: Path, repo_id: str) -> Path:
    home = cache / f"models--{repo_id.replace('/', '--')}"
    folder = home / "snapshots" / "0123"
    folder.mkdir(parents=True)
    (home / "refs").mkdir()
    (home / "refs" / "main").write_text("0123")
    return folder


def keep(folder: Path, store: ArtifactStore, manifest: Manifest, has_passed: bool = True) -> Manifest:
    store.add(manifest, {file.name: folder / file.name for file in manifest.files})
    if has_passed:
        store.pass_gates(manifest, Gates(manifest.id, [{"name": "load", "passed": True}]))
    return manifest


def test_only_passed_artifacts_of_this_model_and_todays_recipe_are_told(tmp_path: Path, cache: Path) -> None:
    recipe = CATALOGUE.recipe("flux.1", FP8)
    assert recipe is not None
    settings = WorkerSettings(builder_store=str(tmp_path / "store"))
    listing, variant = ArtifactListing(settings), CATALOGUE.find("flux.1-dev")
    assert list(listing.list(variant, CATALOGUE)) == []
    assert not (tmp_path / "store").exists()
    store = ArtifactStore(open_store(tmp_path / "store"))
    fresh = keep(tmp_path, store, small_manifest(tmp_path, recipe=recipe))
    keep(tmp_path, store, small_manifest(tmp_path, recipe=plan_pb2.QuantisationRecipe(min_features=1)))
    keep(tmp_path, store, small_manifest(tmp_path, recipe=recipe, base="black-forest-labs/FLUX.1-schnell"))
    keep(tmp_path, store, small_manifest(tmp_path, recipe=recipe, component="transformer_2"))
    keep(tmp_path, store, small_manifest(tmp_path, recipe=recipe, licence="not passed"), has_passed=False)
    (found,) = listing.list(variant, CATALOGUE)
    assert (found.base, found.component, found.scheme, found.compute_type) == (
        "black-forest-labs/FLUX.1-dev",
        "transformer",
        FP8,
        "bfloat16",
    )
    assert (found.source.kind, found.source.path) == (LOCAL, str(tmp_path / "store"))
    assert (found.source.file, found.source.artifact_id) == ("FLUX.1-dev-FP8.json", fresh.id)
    assert (found.source.fetch_bytes, found.source.size_bytes) == (0, fresh.size_bytes)


def test_a_store_elsewhere_costs_its_bytes_until_they_were_copied(tmp_path: Path, cache: Path) -> None:
    recipe = CATALOGUE.recipe("flux.1", FP8)
    settings = WorkerSettings(builder_store="memory://listing/store", worker_cache_dir=tmp_path)
    manifest = keep(tmp_path, ArtifactStore(open_store(settings.store_url)), small_manifest(tmp_path, recipe=recipe))
    listing, variant = ArtifactListing(settings), CATALOGUE.find("flux.1-dev")
    (found,) = listing.list(variant, CATALOGUE)
    assert found.source.fetch_bytes == manifest.size_bytes
    keep(tmp_path, ArtifactStore(open_store(settings.copies_folder)), manifest)
    (found,) = listing.list(variant, CATALOGUE)
    assert found.source.fetch_bytes == 0


def test_a_store_that_is_none_keeps_no_model_from_loading(tmp_path: Path, cache: Path) -> None:
    for place in ("nonsense://bucket/folder", str(tmp_path / "file")):
        (tmp_path / "file").write_text("no folder")
        listing = ArtifactListing(WorkerSettings(builder_store=place))
        assert list(listing.list(CATALOGUE.find("flux.1-dev"), CATALOGUE)) == []


def test_hosted_artifacts_that_were_fetched_are_at_hand_under_either_name(tmp_path: Path, cache: Path) -> None:
    listing = ArtifactListing(WorkerSettings(builder_store=str(tmp_path / "store")))
    variant = CATALOGUE.find("flux.1-dev")
    folder = snapshot(cache, "unsloth/FLUX.1-dev-FP8")
    (folder / "FLUX.1-dev-FP8.json").write_text("{}")
    (folder / "FLUX.1-dev-INT8.pt").write_text("")
    found = {(item.component, item.scheme): item.source for item in listing.list(variant, CATALOGUE)}
    assert found.keys() == {("transformer", FP8), ("transformer", device_pb2.SCHEME_INT8)}
    assert {source.kind for source in found.values()} == {HOSTED}
    assert not any(source.fetch_bytes for source in found.values())


def test_a_cache_without_the_shards_that_an_artifact_replaced_is_no_problem(tmp_path: Path, cache: Path) -> None:
    inspector = Inspector(WorkerSettings(builder_store=str(tmp_path / "store")))
    folder = snapshot(cache, "black-forest-labs/FLUX.1-dev")
    names = ("transformer", "vae")
    (folder / "model_index.json").write_text(json.dumps({name: ["diffusers", "X"] for name in names}))
    for name in names:
        (folder / name).mkdir()
        (folder / name / "config.json").write_text("{}")
    (folder / "vae" / "model.safetensors").write_bytes(EMPTY_WEIGHTS)
    answer = inspector.inspect("flux.1-dev")
    assert (answer.problem, answer.is_present, answer.present_bytes) == ("", False, len(EMPTY_WEIGHTS))
    (folder / "transformer" / "model.safetensors").write_bytes(EMPTY_WEIGHTS)
    answer = inspector.inspect("flux.1-dev")
    assert (answer.problem, answer.is_present) == ("", True)
