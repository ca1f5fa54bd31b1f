"""The store as callers see it: checkpoints by id or name, listed or not, with their verdicts.

Knows nothing of builds. Blocks: call it off the event loop. Invariant: only what has passed its gates is listed, unless
more is asked for.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from darkroom.artifacts.collecting import Collected, collect
from darkroom.artifacts.gates import Gates
from darkroom.artifacts.manifest import Manifest
from darkroom.artifacts.names import stem_of
from darkroom.artifacts.store import BLOBS, MANIFESTS, ArtifactStore
from darkroom.rpc.errors import DarkroomError, InvalidRequestError, UnknownCheckpointError
from darkroom.rpc.logs import log
from darkroom.storage import Store
from darkroom.v1 import checkpoint_pb2, device_pb2, plan_pb2
from services.checkpoint_builder.gates.report import to_report

SHEETS = "sheets/"
LEAST_ID_CHARACTERS = 8
PASSED, FAILED, UNGATED = (
    checkpoint_pb2.CHECKPOINT_STATE_PASSED,
    checkpoint_pb2.CHECKPOINT_STATE_FAILED,
    checkpoint_pb2.CHECKPOINT_STATE_UNGATED,
)
# Bytes of a number by torch's name of its type.
NUMBER_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4, "float64": 8, "int64": 8, "int32": 4}
COMPUTE_WORDS: dict[int, str] = {
    plan_pb2.COMPUTE_TYPE_BFLOAT16: "bfloat16",
    plan_pb2.COMPUTE_TYPE_FLOAT16: "float16",
    plan_pb2.COMPUTE_TYPE_FLOAT32: "float32",
}


class Shelf:
    """Checkpoints of one store."""

    def __init__(self, store: Store) -> None:
        self.artifacts = ArtifactStore(store)

    def checkpoints(self, includes_unlisted: bool = False) -> list[checkpoint_pb2.Checkpoint]:
        """Returns checkpoints by name and id; what is damaged is logged and left out."""
        found = [
            checkpoint
            for stem, identity in self._keys()
            if (checkpoint := self._readable(stem, identity)) is not None
            and (includes_unlisted or checkpoint.state == PASSED)
        ]
        return sorted(found, key=lambda item: (item.name, item.id))

    def find(self, key: str) -> tuple[checkpoint_pb2.Checkpoint, Manifest]:
        """Returns the checkpoint that `key` means: an id, eight characters of it or more, or a name.

        Raises:
            UnknownCheckpointError: there is none.
            InvalidRequestError: there are several.
            DarkroomError: it is damaged.
        """
        if not key:
            raise InvalidRequestError({"checkpoint_id": "is empty; send an id or a name"})
        keys = list(self._keys())
        is_id = len(key) >= LEAST_ID_CHARACTERS
        found = [item for item in keys if item[0] == key or (is_id and item[1].startswith(key.lower()))]
        if len(found) > 1:
            passed = [item for item in found if self._state(*item) == PASSED]
            found = passed if len(passed) == 1 else found
        if not found:
            names = ", ".join(sorted({stem for stem, _ in keys})) or "the store is empty"
            raise UnknownCheckpointError(f"no checkpoint is {key[:80]!r}; there are: {names[:400]}", key=key[:80])
        if len(found) > 1:
            ids = ", ".join(identity[:12] for _, identity in found[:8])
            raise InvalidRequestError({"checkpoint_id": f"{key!r} means {len(found)} checkpoints: send one of {ids}"})
        stem, identity = found[0]
        return self._message(stem, identity), self.artifacts.manifest(stem, identity)

    def gates(self, manifest: Manifest) -> Gates | None:
        """Returns the verdict on a checkpoint that may not even be stored; None where there is none."""
        return self.artifacts.gates(stem_of(manifest.base, manifest.component, manifest.scheme), manifest.id)

    def keep(self, manifest: Manifest, files: Mapping[str, Path], sheet: Path | None) -> None:
        """Stores a checkpoint whole, not listed yet, and takes its files. Raises OSError, UnavailableError."""
        self.artifacts.add(manifest, files, moves=True)
        if sheet is not None:
            self.artifacts.store.put_file(sheet_key(manifest.id), sheet)

    def sheet(self, checkpoint_id: str) -> bytes | None:
        """Returns the contact sheet, a PNG; None where no pictures were made."""
        try:
            return self.artifacts.store.read(sheet_key(checkpoint_id))
        except FileNotFoundError:
            return None

    def collect(self) -> Collected:
        """Deletes what nothing refers to, sheets of checkpoints that are gone included. Raises as `collecting`."""
        result = collect(self.artifacts)
        alive = {identity for _, identity in self._keys()}
        for stored in list(self.artifacts.store.list(SHEETS)):
            if stored.key.removeprefix(SHEETS).removesuffix(".png") not in alive:
                self.artifacts.store.delete(stored.key)
        return result

    def fetch(self, manifest: Manifest, folder: Path) -> dict[str, Path]:
        """Returns the files of a checkpoint on this machine, copied into `folder` where the store is elsewhere."""
        paths: dict[str, Path] = {}
        for file in manifest.files:
            key = BLOBS + file.sha256
            local = self.artifacts.store.local_path(key)
            paths[file.name] = local or _copied(self.artifacts.store, key, file.size_bytes, folder)
        return paths

    def _keys(self) -> Iterator[tuple[str, str]]:
        for stored in self.artifacts.store.list(MANIFESTS):
            stem, identity = stored.key.removeprefix(MANIFESTS).removesuffix(".json").split("/", 1)
            yield stem, identity

    def _readable(self, stem: str, identity: str) -> checkpoint_pb2.Checkpoint | None:
        try:
            return self._message(stem, identity)
        except DarkroomError as problem:
            log.warning("checkpoint_left_out", stem=stem, checkpoint=identity, problem=problem.message)
            return None

    def _state(self, stem: str, identity: str) -> int:
        gates = self.artifacts.gates(stem, identity)
        return UNGATED if gates is None else PASSED if gates.is_passed else FAILED

    def _message(self, stem: str, identity: str) -> checkpoint_pb2.Checkpoint:
        gates = self.artifacts.gates(stem, identity)
        return checkpoint_of(self.artifacts.manifest(stem, identity), gates)


def checkpoint_of(manifest: Manifest, gates: Gates | None) -> checkpoint_pb2.Checkpoint:
    """Returns a checkpoint as callers see it."""
    message = checkpoint_pb2.Checkpoint(
        id=manifest.id,
        name=stem_of(manifest.base, manifest.component, manifest.scheme),
        state=UNGATED if gates is None else PASSED if gates.is_passed else FAILED,
        base=manifest.base,
        family=manifest.family,
        component=manifest.component,
        scheme=manifest.scheme,  # type: ignore[arg-type]
        size_bytes=manifest.size_bytes,
        dense_bytes=_dense_bytes(manifest),
        num_tensors=manifest.num_tensors,
        num_quantised=manifest.num_quantised,
        license=manifest.licence,
        source_sha256=manifest.source_sha256,
        versions=device_pb2.SoftwareVersions(**manifest.versions),
        gates=None if gates is None else to_report(gates),
    )
    for file in manifest.files:
        message.files.add(name=file.name, size_bytes=file.size_bytes, sha256=file.sha256)
    return message


def sheet_key(checkpoint_id: str) -> str:
    """Where a contact sheet is kept."""
    return f"{SHEETS}{checkpoint_id}.png"


def _dense_bytes(manifest: Manifest) -> int:
    computed = NUMBER_BYTES[COMPUTE_WORDS[manifest.compute_type]]
    return sum(
        math.prod(spec.shape) * NUMBER_BYTES.get(spec.dtype, computed if spec.dtype.startswith("float8") else 1)
        for spec in manifest.tensors.values()
    )


def _copied(store: Store, key: str, size_bytes: int, folder: Path) -> Path:
    piece_bytes = 64 * 2**20
    with tempfile.NamedTemporaryFile(dir=folder, delete=False) as target:
        for offset in range(0, size_bytes, piece_bytes):
            target.write(store.read(key, offset, piece_bytes))
    return Path(target.name)
