"""A store of artifacts by their content, in a directory or on an object store.

    blobs/SHA256                 the files of all artifacts
    manifests/STEM/ID.json       an artifact: refers to its blobs
    gates/STEM/ID.json           its verdict: without a passing one nothing is listed
    leases/NAME, collecting      who is adding, and who removes: see `collecting.py`

Knows nothing of tensors or devices. Invariants: a manifest is written after its blobs, by one conditional write, so
that a builder killed at any point leaves nothing that lists; what lists can be read.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from darkroom.artifacts.folder import LocalArtifact, check_files, identify
from darkroom.artifacts.gates import Gates, check_gates, read_gates
from darkroom.artifacts.manifest import Manifest
from darkroom.artifacts.names import stem_of
from darkroom.rpc.errors import DarkroomError, SourceRefusedError, UnavailableError
from darkroom.rpc.logs import log
from darkroom.storage import Store

BLOBS, MANIFESTS, GATES, LEASES, COLLECTING = "blobs/", "manifests/", "gates/", "leases/", "collecting"


@dataclass(frozen=True)
class Entry:
    """One artifact of a store."""

    stem: str
    id: str
    manifest: Manifest


class ArtifactStore:
    """Artifacts of one store. Methods block; several processes may use one store at once."""

    def __init__(self, store: Store) -> None:
        self.store = store
        # Manifests never change under an id.
        self._known: dict[str, Manifest] = {}

    def add(self, manifest: Manifest, files: Mapping[str, Path], *, moves: bool = False) -> str:
        """Stores an artifact, not listed until `pass_gates`; returns its id. The same content again is fine.

        Args:
            manifest: whose files are all in `files`.
            files: by name.
            moves: takes them away instead of copying, links apart: free of cost on the file system of a local store.

        Raises:
            UnavailableError: somebody is removing from this store right now.
            OSError: the disk or the server failed; nothing is listed.
        """
        with self._lease():
            for file in manifest.files:
                # Written again where it is there already: its bytes are then right, and its age starts anew.
                path = files[file.name]
                put = self.store.take_file if moves and not path.is_symlink() else self.store.put_file
                put(BLOBS + file.sha256, path)
            self.describe(manifest)
        return manifest.id

    def describe(self, manifest: Manifest) -> None:
        """Stores a manifest whose blobs are there already. Raises OSError."""
        self.store.create(self._key(MANIFESTS, manifest), manifest.data)

    def pass_gates(self, manifest: Manifest, gates: Gates) -> None:
        """Stores the verdict on an artifact that was added; a later one replaces an earlier one.

        Raises:
            SourceRefusedError: the verdict is on another artifact.
        """
        if gates.artifact != manifest.id:
            raise SourceRefusedError(f"the verdict is on {gates.artifact[:12]}, not on {manifest.id[:12]}")
        key = self._key(GATES, manifest)
        while not self.store.create(key, gates.data):
            if self._read(key) == gates.data:
                return
            self.store.delete(key)

    def list(self, stem: str = "") -> Iterator[Entry]:
        """Yields the artifacts whose gates are passed, by name and id; what is damaged is logged and left out.

        Args:
            stem: of these alone; empty for all.
        """
        prefix = f"{GATES}{stem}/" if stem else GATES
        for key in sorted(stored.key for stored in self.store.list(prefix)):
            found, identity = key.removeprefix(GATES).removesuffix(".json").split("/", 1)
            try:
                manifest = self.get(found, identity)
            except (DarkroomError, OSError) as problem:
                log.warning("artifact_left_out", artifact=identity, stem=found, problem=str(problem))
                continue
            yield Entry(found, identity, manifest)

    def get(self, stem: str, artifact_id: str) -> Manifest:
        """Returns the manifest of an artifact that has passed its gates.

        Raises:
            SourceRefusedError: no such artifact, its gates are missing or failed, or a blob is missing.
            CorruptCheckpointError: manifest or gates are damaged.
        """
        check_gates(self._read(f"{GATES}{stem}/{artifact_id}.json"), artifact_id)
        manifest = self.manifest(stem, artifact_id)
        for file in manifest.files:
            if self.store.size(BLOBS + file.sha256) != file.size_bytes:
                raise SourceRefusedError(f"the store lacks {file.name} of artifact {artifact_id[:12]}, or holds a part")
        return manifest

    def manifest(self, stem: str, artifact_id: str) -> Manifest:
        """Returns a manifest, whatever its gates say. Raises as `get`."""
        if artifact_id not in self._known:
            data = self._read(f"{MANIFESTS}{stem}/{artifact_id}.json")
            if data is None:
                raise SourceRefusedError(f"the store has no artifact {artifact_id[:12]} named {stem}")
            self._known[artifact_id] = identify(data, f"{stem}.json", artifact_id)
        return self._known[artifact_id]

    def gates(self, stem: str, artifact_id: str) -> Gates | None:
        """Returns the verdict on an artifact, None where there is none. Raises CorruptCheckpointError."""
        data = self._read(f"{GATES}{stem}/{artifact_id}.json")
        return None if data is None else read_gates(data)

    def open(self, stem: str, artifact_id: str) -> LocalArtifact:
        """Returns an artifact of a local store with the paths of its files, headers checked.

        Raises:
            SourceRefusedError: as `get`, or the store is elsewhere.
            CorruptCheckpointError: damaged.
        """
        manifest = self.get(stem, artifact_id)
        paths = {file.name: self.store.local_path(BLOBS + file.sha256) for file in manifest.files}
        if None in paths.values():
            raise SourceRefusedError(f"{self.store.url} is not on this machine: fetch the artifact first")
        found = LocalArtifact(manifest, {name: path for name, path in paths.items() if path is not None})
        check_files(found)
        return found

    def remove(self, stem: str, artifact_id: str) -> None:
        """Takes an artifact out of the list at once; its blobs go with the next collection."""
        self.store.delete(f"{GATES}{stem}/{artifact_id}.json")

    @contextlib.contextmanager
    def _lease(self) -> Iterator[None]:
        key = LEASES + secrets.token_hex(8)
        self.store.create(key, b"")
        try:
            # In this order, and the collector's in the other: one of both sees the other.
            if self.store.size(COLLECTING) is not None:
                raise UnavailableError("the store is being cleaned; try again in a minute", retry_after_s=60)
            yield
        finally:
            self.store.delete(key)

    def _read(self, key: str) -> bytes | None:
        try:
            return self.store.read(key)
        except FileNotFoundError:
            return None

    @staticmethod
    def _key(folder: str, manifest: Manifest) -> str:
        return f"{folder}{stem_of(manifest.base, manifest.component, manifest.scheme)}/{manifest.id}.json"
