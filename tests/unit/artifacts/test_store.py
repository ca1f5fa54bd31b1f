"""The store: what lists, what a kill leaves, what is collected, and what several at once can't break."""

from __future__ import annotations

import datetime
import hashlib
import os
import secrets
import threading
from pathlib import Path
from typing import Any

import pytest

from darkroom.artifacts.collecting import collect
from darkroom.artifacts.folder import header_digest, open_folder
from darkroom.artifacts.gates import Gates
from darkroom.artifacts.manifest import Manifest
from darkroom.artifacts.store import BLOBS, COLLECTING, ArtifactStore
from darkroom.artifacts.verification import Verification
from darkroom.rpc.errors import CorruptCheckpointError, SourceRefusedError, UnavailableError
from darkroom.storage import open_store
from darkroom.storage.local import LocalStore
from tests.unit.artifacts.describing import STEM, small_manifest

LATER = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=2)
PASSED = [{"name": "load", "passed": True}]


@pytest.fixture
def artifacts(tmp_path: Path) -> ArtifactStore:
    return ArtifactStore(open_store(tmp_path / "store"))


@pytest.fixture(params=["directory", "memory"])
def anywhere(request: pytest.FixtureRequest, tmp_path: Path) -> ArtifactStore:
    """In a directory and on an object store."""
    place = tmp_path / "store" if request.param == "directory" else f"memory://bucket/{secrets.token_hex(4)}"
    return ArtifactStore(open_store(place))


def files_of(manifest: Manifest, folder: Path) -> dict[str, Path]:
    return {file.name: folder / file.name for file in manifest.files}


def put(artifacts: ArtifactStore, folder: Path, **fields: Any) -> Manifest:
    manifest = small_manifest(folder, **fields)
    artifacts.add(manifest, files_of(manifest, folder))
    artifacts.pass_gates(manifest, Gates(manifest.id, PASSED))
    return manifest


def test_an_artifact_lists_once_its_gates_are_passed_and_opens_with_its_files(
    artifacts: ArtifactStore, tmp_path: Path
) -> None:
    manifest = small_manifest(tmp_path)
    assert artifacts.add(manifest, files_of(manifest, tmp_path)) == manifest.id
    assert list(artifacts.list()) == []
    with pytest.raises(SourceRefusedError, match="has not passed"):
        artifacts.open(STEM, manifest.id)
    artifacts.pass_gates(manifest, Gates(manifest.id, [{"name": "ssim", "passed": False}]))
    assert list(artifacts.list()) == []
    artifacts.pass_gates(manifest, Gates(manifest.id, PASSED))
    assert [(entry.stem, entry.id) for entry in artifacts.list()] == [(STEM, manifest.id)]
    (path,) = artifacts.open(STEM, manifest.id).paths.values()
    assert hashlib.sha256(path.read_bytes()).hexdigest() == manifest.files[0].sha256


def test_a_verdict_on_another_artifact_is_refused(anywhere: ArtifactStore, tmp_path: Path) -> None:
    manifest = put(anywhere, tmp_path)
    with pytest.raises(SourceRefusedError):
        anywhere.pass_gates(manifest, Gates("another", PASSED))


class Dying(LocalStore):
    """A directory whose process ends at the nth write."""

    def __init__(self, root: Path, writes_left: int) -> None:
        super().__init__(root)
        self._left = writes_left

    def _spend(self) -> None:
        if self._left == 0:
            raise KeyboardInterrupt
        self._left -= 1

    def create(self, key: str, data: bytes) -> bool:
        self._spend()
        return super().create(key, data)

    def put_file(self, key: str, path: Path) -> None:
        self._spend()
        super().put_file(key, path)


def test_a_builder_killed_at_any_write_leaves_nothing_that_lists(tmp_path: Path) -> None:
    for writes in range(10):
        folder = tmp_path / str(writes)
        folder.mkdir()
        try:
            put(ArtifactStore(Dying(folder / "store", writes)), folder)
        except KeyboardInterrupt:
            left = ArtifactStore(open_store(folder / "store"))
            assert list(left.list()) == []
            collect(left, now=LATER)
            assert not [stored.key for stored in left.store.list()]
            put(left, folder)
            assert len(list(left.list())) == 1
        else:
            break
    # Lease, blob, manifest, gates.
    assert writes == 4


def test_two_builders_of_the_same_and_of_different_artifacts_do_not_disturb_each_other(tmp_path: Path) -> None:
    manifests, failures = [small_manifest(tmp_path, licence=licence) for licence in ("MIT", "MIT", "X", "Y")], []

    def build(manifest: Manifest) -> None:
        try:
            own = ArtifactStore(open_store(tmp_path / "store"))
            for _ in range(10):
                own.add(manifest, files_of(manifest, tmp_path))
                own.pass_gates(manifest, Gates(manifest.id, PASSED))
                assert manifest.id in {entry.id for entry in own.list()}
        except Exception as failure:
            failures.append(failure)

    threads = [threading.Thread(target=build, args=(manifest,)) for manifest in manifests]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    found = ArtifactStore(open_store(tmp_path / "store"))
    assert {entry.id for entry in found.list()} == {manifest.id for manifest in manifests}


def test_collecting_takes_what_nothing_refers_to_and_is_old_and_nothing_else(
    anywhere: ArtifactStore, tmp_path: Path
) -> None:
    kept = put(anywhere, tmp_path)
    orphan = tmp_path / "orphan"
    orphan.write_bytes(b"left by a killed build")
    anywhere.store.put_file(BLOBS + "0" * 64, orphan)
    failed = small_manifest(tmp_path, licence="failed")
    anywhere.add(failed, files_of(failed, tmp_path))
    assert (collect(anywhere).num_blobs, collect(anywhere).num_manifests) == (0, 0)
    done = collect(anywhere, now=LATER)
    assert (done.num_blobs, done.num_manifests, done.freed_bytes) == (1, 1, orphan.stat().st_size)
    assert [entry.id for entry in anywhere.list()] == [kept.id]
    assert anywhere.get(STEM, kept.id) == kept


def test_a_removed_artifact_stops_listing_at_once_and_its_bytes_go_with_the_next_collection(
    anywhere: ArtifactStore, tmp_path: Path
) -> None:
    manifest = put(anywhere, tmp_path)
    anywhere.remove(STEM, manifest.id)
    assert list(anywhere.list()) == []
    assert collect(anywhere, now=LATER).num_blobs == 1
    assert list(anywhere.store.list()) == []


def test_a_collector_and_a_builder_step_back_for_each_other(anywhere: ArtifactStore, tmp_path: Path) -> None:
    with anywhere._lease(), pytest.raises(UnavailableError, match="adding"):
        collect(anywhere)
    anywhere.store.create(COLLECTING, b"")
    with pytest.raises(UnavailableError, match="cleaned"):
        put(anywhere, tmp_path)
    with pytest.raises(UnavailableError, match="already"):
        collect(anywhere)


def test_a_collector_that_died_stops_nobody_for_long(anywhere: ArtifactStore, tmp_path: Path) -> None:
    anywhere.store.create(COLLECTING, b"")
    anywhere.store.create("leases/dead", b"")
    collect(anywhere, now=LATER)
    put(anywhere, tmp_path)
    assert [stored.key for stored in anywhere.store.list("leases/")] == []


def test_a_manifest_that_can_not_be_read_stops_a_collection_before_anything_goes(
    artifacts: ArtifactStore, tmp_path: Path
) -> None:
    manifest = put(artifacts, tmp_path)
    path = artifacts.store.local_path(f"manifests/{STEM}/{manifest.id}.json")
    assert path is not None
    path.write_bytes(b"{}")
    with pytest.raises(SourceRefusedError):
        collect(ArtifactStore(artifacts.store), now=LATER)
    assert artifacts.store.size(BLOBS + manifest.files[0].sha256) is not None


def test_damage_anywhere_in_the_store_is_told_or_left_out(artifacts: ArtifactStore, tmp_path: Path) -> None:
    manifest = put(artifacts, tmp_path)
    blob = BLOBS + manifest.files[0].sha256
    for key in (f"manifests/{STEM}/{manifest.id}.json", f"gates/{STEM}/{manifest.id}.json", blob):
        path = artifacts.store.local_path(key)
        assert path is not None
        content = path.read_bytes()
        for place in (0, len(content) // 2, len(content) - 1):
            path.write_bytes(content[:place] + bytes([content[place] ^ 4]) + content[place + 1 :])
            with pytest.raises((CorruptCheckpointError, SourceRefusedError)):
                ArtifactStore(artifacts.store).open(STEM, manifest.id)
        path.write_bytes(content[:-1])
        assert list(ArtifactStore(artifacts.store).list()) == []
        path.write_bytes(content)
    assert len(list(ArtifactStore(artifacts.store).list())) == 1


def test_a_folder_needs_gates_or_the_id_that_the_plan_names(tmp_path: Path) -> None:
    manifest = small_manifest(tmp_path)
    (tmp_path / f"{STEM}.json").write_bytes(manifest.data)
    with pytest.raises(SourceRefusedError, match="has not passed"):
        open_folder(tmp_path, STEM)
    assert open_folder(tmp_path, STEM, manifest.id).manifest == manifest
    with pytest.raises(SourceRefusedError, match="the plan wants"):
        open_folder(tmp_path, STEM, "0" * 64)
    (tmp_path / f"{STEM}.gates.json").write_bytes(Gates(manifest.id, PASSED).data)
    assert open_folder(tmp_path, STEM).manifest == manifest
    with pytest.raises(SourceRefusedError, match="no artifact"):
        open_folder(tmp_path, "Other-FP8")


def test_a_manifest_never_leads_out_of_its_folder(tmp_path: Path) -> None:
    (file,) = small_manifest(tmp_path).files
    for name in ("../secret", "/etc/passwd", "..", "a/b"):
        manifest = small_manifest(files=(type(file)(name, file.sha256, file.size_bytes),))
        (tmp_path / f"{STEM}.json").write_bytes(manifest.data)
        with pytest.raises(CorruptCheckpointError, match="no plain name"):
            open_folder(tmp_path, STEM, manifest.id)


def test_a_file_is_hashed_once_and_again_when_it_changes(tmp_path: Path) -> None:
    (file,) = small_manifest(tmp_path).files
    path, memory = tmp_path / file.name, tmp_path / "cache" / "verified.json"

    def verify() -> int:
        with Verification(memory) as verification:
            verification.begin(file, path)
            num_hashed = len(verification._running)
            verification.wait()
        return num_hashed

    assert [verify(), verify()] == [1, 0]
    os.utime(path, ns=(1, 1))
    assert [verify(), verify()] == [1, 0]
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    for _ in range(2):
        with pytest.raises(CorruptCheckpointError, match="damaged"):
            verify()
    memory.write_text("garbage")
    with pytest.raises(CorruptCheckpointError):
        verify()


def test_a_header_of_nonsense_length_is_read_no_further_than_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    path.write_bytes(b"\xff" * 64)
    assert header_digest(path, 64) == hashlib.sha256(b"\xff" * 64).hexdigest()
