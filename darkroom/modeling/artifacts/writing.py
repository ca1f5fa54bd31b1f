"""Writes an artifact's weights, one tensor at a time, so that no more than one layer is ever held.

Knows nothing of models or manifests. Invariants: the same tensors in the same order give the same bytes; a file has its
name only once it is whole and on disk.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from darkroom.artifacts.manifest import ArtifactFile, TensorSpec
from darkroom.artifacts.names import index_name
from darkroom.modeling.artifacts.flatten import dtype_word, flatten, part_name
from darkroom.modeling.artifacts.shard import ENTRY_BYTES, PAGE_BYTES, Shard

# What the Hub and its libraries split at.
SHARD_BYTES = 5 * 10**9
# Most parts of torchao's subclasses: NVFP4Tensor's two scales, its numbers and the activations' scale.
MOST_PARTS = 4


@dataclass
class Written:
    """What was written."""

    files: tuple[ArtifactFile, ...] = ()
    tensors: dict[str, TensorSpec] = field(default_factory=dict)
    kinds: list[dict[str, Any]] = field(default_factory=list)


class ShardWriter:
    """Writes one artifact's weights. A `with` block that ends in an error leaves no file.

    with ShardWriter(folder, "FLUX.1-dev-FP8", names) as writer:
        for name, tensor in ...:
            writer.add(name, tensor)
        written = writer.finish()
    """

    def __init__(self, folder: Path, stem: str, names: Iterable[str], shard_bytes: int = SHARD_BYTES) -> None:
        """Starts in an existing folder.

        Args:
            folder: where the files go.
            stem: their name without ends.
            names: of the tensors to come: they size the header's room. A header that does not fit starts a shard.
            shard_bytes: most data of a file that holds several tensors.
        """
        self._folder, self._stem, self._shard_bytes = folder, stem, shard_bytes
        room = sum(MOST_PARTS * (len(name.encode()) + ENTRY_BYTES) for name in names)
        self._room = -(-(room + PAGE_BYTES) // PAGE_BYTES) * PAGE_BYTES - 8
        self._written = Written()
        self._shards: list[Shard] = []
        self._pool = ThreadPoolExecutor(2, thread_name_prefix="seal")
        self._is_finished = False

    def __enter__(self) -> ShardWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._pool.shutdown(cancel_futures=True)
        if not self._is_finished:
            for shard in self._shards:
                shard.discard()

    def add(self, name: str, tensor: torch.Tensor) -> None:
        """Writes a tensor of the state dict, from any device.

        Raises:
            ValueError: the name was written before.
            KernelFailedError: a subclass that artifacts don't hold.
            OSError: the disk failed.
        """
        if name in self._written.tensors:
            raise ValueError(f"{name} was written already")
        kind, parts = flatten(name, tensor)
        size = sum(part.numel() * part.element_size() for part in parts.values())
        if not self._shards or not self._shards[-1].has_room(parts, size, self._shard_bytes):
            self._next_shard()
        for part, value in parts.items():
            self._shards[-1].add(part, value)
        place: int = -1
        own: tuple[str, ...] = ()
        if kind is not None:
            place = self._place_of(kind)
            own = tuple(part.removeprefix(part_name(name, "")) for part in parts)
        self._written.tensors[name] = TensorSpec(dtype_word(tensor.dtype), tuple(tensor.shape), place, own)

    def finish(self) -> Written:
        """Gives the files their names and returns what was written. Raises OSError."""
        if not self._shards:
            self._next_shard()
        self._shards[-1].close(self._pool)
        files = [shard.named(self._stem, place, len(self._shards)) for place, shard in enumerate(self._shards, 1)]
        if len(files) > 1:
            files.append(self._write_index(files))
        _sync(self._folder)
        self._written.files = tuple(files)
        self._is_finished = True
        return self._written

    def _next_shard(self) -> None:
        if self._shards:
            self._shards[-1].close(self._pool)
        path = self._folder / f".{self._stem}.{len(self._shards) + 1}.part"
        self._shards.append(Shard(path, self._room))

    def _place_of(self, kind: dict[str, Any]) -> int:
        kinds = self._written.kinds
        if kind not in kinds:
            kinds.append(kind)
        return kinds.index(kind)

    def _write_index(self, files: list[ArtifactFile]) -> ArtifactFile:
        """The list of shards that the Hub's libraries expect."""
        places = {
            part: file.name for file, shard in zip(files, self._shards, strict=True) for part in sorted(shard.entries)
        }
        total = sum(shard.data_bytes for shard in self._shards)
        table = {"metadata": {"total_size": total}, "weight_map": places}
        data = (json.dumps(table, indent=1, sort_keys=True) + "\n").encode()
        path = self._folder / index_name(self._stem)
        draft = path.with_name(f".{path.name}.part")
        with draft.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, path)
        return ArtifactFile(path.name, hashlib.sha256(data).hexdigest(), len(data))


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def versions() -> dict[str, str]:
    """Returns the versions that an artifact depends on, as plain texts."""
    import diffusers
    import torchao
    import transformers

    found = {"torch": torch, "torchao": torchao, "diffusers": diffusers, "transformers": transformers}
    return {name: str(module.__version__) for name, module in found.items()}
