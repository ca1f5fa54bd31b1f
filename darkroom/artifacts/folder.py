"""An artifact that lies in a folder under its own names, as in a Hub repository or where a builder writes.

Knows nothing of stores or tensors. Invariant: what is opened here is described by its manifest, whole by size, and
either named by id or passed by its gates; the bytes inside the files are hashed by whoever reads them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from darkroom.artifacts.gates import check_gates
from darkroom.artifacts.manifest import ArtifactFile, Manifest, read_manifest
from darkroom.artifacts.names import GATES_SUFFIX, MANIFEST_SUFFIX
from darkroom.rpc.errors import CorruptCheckpointError, SourceRefusedError

_LENGTH_BYTES = 8


@dataclass(frozen=True)
class LocalArtifact:
    """An artifact whose files are on this machine."""

    manifest: Manifest
    # By the names that the manifest has for them.
    paths: Mapping[str, Path]


def open_folder(folder: Path, stem: str, artifact_id: str = "") -> LocalArtifact:
    """Returns the artifact of this name.

    Args:
        folder: holds `<stem>.json` and the files that it names.
        stem: the name without its ends.
        artifact_id: what the manifest must hash to; empty takes what the gates file names, and that must have passed.

    Raises:
        SourceRefusedError: no manifest, another format, another id, gates missing or failed, or a file missing.
        CorruptCheckpointError: damaged.
    """
    name = stem + MANIFEST_SUFFIX
    try:
        data = (folder / name).read_bytes()
    except (FileNotFoundError, NotADirectoryError) as absent:
        raise SourceRefusedError(f"{folder.name} has no artifact {name}") from absent
    manifest = identify(data, name, artifact_id)
    if not artifact_id:
        check_gates(_read(folder / (stem + GATES_SUFFIX)), manifest.id, stem + GATES_SUFFIX)
    found = LocalArtifact(manifest, {file.name: folder / safe_name(file.name) for file in manifest.files})
    check_files(found)
    return found


def identify(data: bytes, name: str, artifact_id: str) -> Manifest:
    """Returns the manifest, refused where it is not the wanted one; an empty id wants any."""
    found = hashlib.sha256(data).hexdigest()
    if artifact_id and found != artifact_id:
        problem = f"{name} is artifact {found[:12]}, the plan wants {artifact_id[:12]}: it was changed or damaged"
        read_manifest(data, name)
        raise SourceRefusedError(problem)
    return read_manifest(data, name)


def check_files(artifact: LocalArtifact) -> None:
    """Checks every file's size and header, without reading further. Raises as `open_folder`."""
    for file in artifact.manifest.files:
        path = artifact.paths[file.name]
        if not path.is_file():
            raise SourceRefusedError(f"the artifact's file {file.name} is missing")
        size = path.stat().st_size
        if size != file.size_bytes:
            raise CorruptCheckpointError(f"{file.name} has {size} bytes, {file.size_bytes} expected", file=file.name)
        if file.header_sha256 and header_digest(path, size) != file.header_sha256:
            raise CorruptCheckpointError(f"the header of {file.name} is damaged: its hash is another", file=file.name)


def header_digest(path: Path, size: int) -> str:
    """Returns the sha256 of a safetensors file up to its data; of what there is, where the length is nonsense."""
    with path.open("rb") as file:
        start = file.read(_LENGTH_BYTES)
        rest = file.read(min(int.from_bytes(start, "little"), size))
    return hashlib.sha256(start + rest).hexdigest()


def safe_name(name: str) -> str:
    """Returns a file's name. Raises CorruptCheckpointError for one that leads elsewhere."""
    if not name or name != Path(name).name or name in (".", ".."):
        raise CorruptCheckpointError(f"the manifest names a file {name!r}, which is no plain name")
    return name


def named_files(manifest: Manifest, stem: str) -> dict[str, ArtifactFile]:
    """Returns the files by name, each checked to belong to this stem."""
    for file in manifest.files:
        if not safe_name(file.name).startswith(stem):
            raise CorruptCheckpointError(f"{stem}{MANIFEST_SUFFIX} names a foreign file {file.name!r}")
    return {file.name: file for file in manifest.files}


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
