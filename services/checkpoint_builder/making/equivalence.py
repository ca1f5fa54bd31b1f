"""Byte-identical components: where the store has a checkpoint of the same bytes, it is taken instead of made again.

Two models often share a text encoder; which do is found here, by hash, and not believed. Knows nothing of quantising.
Invariant: a checkpoint is taken only if the dense source hashes to the same value, under the same recipe, class and
versions, so that making it again would give the same files.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path

from darkroom.artifacts.manifest import ArtifactFile, Manifest, clean_config
from darkroom.artifacts.names import index_name, stem_of
from darkroom.artifacts.store import BLOBS, MANIFESTS, ArtifactStore
from darkroom.modeling.artifacts.writing import versions
from darkroom.rpc.errors import DarkroomError
from services.checkpoint_builder.making.component import Dense, write_manifest
from services.checkpoint_builder.order import Task

PIECE_BYTES = 64 * 2**20


def candidates(store: ArtifactStore, dense: Dense) -> list[Manifest]:
    """Returns checkpoints, listed or not, that would be this one if their sources were the same."""
    part, found = dense.part, []
    for stored in store.store.list(MANIFESTS):
        stem, identity = stored.key.removeprefix(MANIFESTS).removesuffix(".json").split("/", 1)
        try:
            manifest = store.manifest(stem, identity)
        except DarkroomError:
            continue
        if (
            manifest.scheme == part.scheme
            and manifest.compute_type == part.compute_type
            and manifest.recipe == part.recipe
            and manifest.class_name == dense.source.kind.__name__
            and clean_config(manifest.config) == clean_config(dense.config)
            and dict(manifest.versions) == versions()
            and all(store.store.size(BLOBS + file.sha256) == file.size_bytes for file in manifest.files)
        ):
            found.append(manifest)
    return found


def same_source(manifests: Sequence[Manifest], source_sha256: str) -> Manifest | None:
    """Returns the one that was made of this very source."""
    return next((manifest for manifest in manifests if manifest.source_sha256 == source_sha256), None)


def adopt(store: ArtifactStore, found: Manifest, task: Task, dense: Dense, folder: Path) -> Manifest:
    """Puts the files of `found` into `folder` under this component's name, with a manifest for this base."""
    part = dense.part
    old = stem_of(found.base, found.component, found.scheme)
    names = {file.name: part.stem + file.name.removeprefix(old) for file in found.files}
    files = tuple(_place(store, file, names, folder / names[file.name], index_name(old)) for file in found.files)
    manifest = dataclasses.replace(
        found,
        base=task.base,
        family=task.variant.family,
        component=part.name,
        licence=task.variant.license,
        source=dense.source.origin,
        source_revision=dense.source.revision,
        files=files,
    )
    write_manifest(folder, part.stem, manifest)
    return manifest


def _place(store: ArtifactStore, file: ArtifactFile, names: dict[str, str], path: Path, index: str) -> ArtifactFile:
    """Links or fetches a file. The list of shards names them, so it is written anew."""
    if file.name == index:
        table = json.loads(store.store.read(BLOBS + file.sha256))
        table["weight_map"] = {name: names[shard] for name, shard in table["weight_map"].items()}
        data = (json.dumps(table, indent=1, sort_keys=True) + "\n").encode()
        path.write_bytes(data)
        return ArtifactFile(path.name, hashlib.sha256(data).hexdigest(), len(data))
    local = store.store.local_path(BLOBS + file.sha256)
    if local is not None:
        os.symlink(local, path)
    else:
        with path.open("wb") as target:
            for offset in range(0, file.size_bytes, PIECE_BYTES):
                target.write(store.store.read(BLOBS + file.sha256, offset, PIECE_BYTES))
    return dataclasses.replace(file, name=path.name)
