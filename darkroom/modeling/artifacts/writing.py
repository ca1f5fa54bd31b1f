"""Writes an artifact's weights, one tensor at a time, so that no more than one layer is ever held.

    room for the header | tensors that fill whole lines of 64 bytes, as they come | the odd rest, widest types first

The header's room is kept free at the front and filled in last: nothing is written twice. Knows nothing of models or
manifests. Invariants: the same tensors in the same order give the same bytes; a file has its name only once it is whole
and on disk; every tensor lies at a multiple of its item's size, which mapped memory needs.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import torch

from darkroom.artifacts.manifest import ArtifactFile, TensorSpec
from darkroom.artifacts.names import index_name, shard_name
from darkroom.modeling.artifacts.flatten import dtype_word, flatten, part_name

# What the Hub and its libraries split at.
SHARD_BYTES = 5 * 10**9
# Data begins at a page; tensors that fill whole lines keep every following one at a line.
PAGE_BYTES, LINE_BYTES = 4096, 64
# Most parts of torchao's subclasses: NVFP4Tensor's two scales, its numbers and the activations' scale.
MOST_PARTS = 4
# Of an entry beside its name: type, shape of four axes, two offsets of twelve digits.
ENTRY_BYTES = 144
COPY_BYTES = 16 * 2**20
# By the format: https://github.com/huggingface/safetensors, "Dtype".
_CODES = {
    torch.bool: "BOOL", torch.uint8: "U8", torch.int8: "I8", torch.int16: "I16", torch.uint16: "U16",
    torch.int32: "I32", torch.uint32: "U32", torch.int64: "I64", torch.uint64: "U64", torch.float16: "F16",
    torch.bfloat16: "BF16", torch.float32: "F32", torch.float64: "F64", torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2", torch.float8_e8m0fnu: "F8_E8M0",
}  # fmt: skip


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
        self._shards: list[_Shard] = []
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
        place, own = -1, ()
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
        self._shards.append(_Shard(path, self._room))

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


class _Shard:
    """One file that is being written."""

    def __init__(self, path: Path, room: int) -> None:
        self._path, self._room = path, room
        self._file: BinaryIO = path.open("wb")
        self._file.seek(8 + room)
        # By name: code, shape, begin and end among the data.
        self.entries: dict[str, tuple[str, list[int], int, int]] = {}
        self._header_bytes = len('{"__metadata__":{"format":"pt"}}')
        # Tensors that don't fill whole lines, until the end.
        self._odd: list[tuple[str, torch.Tensor]] = []
        self._odd_bytes = 0
        self.data_bytes = 0
        self._seal: Future[tuple[str, str, int]] | None = None

    def has_room(self, parts: dict[str, torch.Tensor], size: int, most_bytes: int) -> bool:
        """Tells whether a tensor still goes in; an empty shard takes any."""
        if not self.entries and not self._odd:
            return True
        header = sum(len(name.encode()) + ENTRY_BYTES for name in parts)
        fits = self.data_bytes + self._odd_bytes + size <= most_bytes
        return fits and self._header_bytes + header <= self._room

    def add(self, name: str, tensor: torch.Tensor) -> None:
        size = tensor.numel() * tensor.element_size()
        self._header_bytes += len(name.encode()) + ENTRY_BYTES
        if size % LINE_BYTES:
            self._odd.append((name, tensor.to("cpu", copy=True)))
            self._odd_bytes += size
        else:
            self._append(name, tensor)

    def close(self, pool: ThreadPoolExecutor) -> None:
        """Writes the rest and the header; hashing goes on beside what follows."""
        self._odd.sort(key=lambda item: -item[1].element_size())
        for name, tensor in self._odd:
            self._append(name, tensor)
        self._odd.clear()
        self._odd_bytes = 0
        self._write_header()
        self._file.close()
        self._seal = pool.submit(_seal, self._path, 8 + self._room)

    def named(self, stem: str, place: int, count: int) -> ArtifactFile:
        """Gives the file its name, once it is on disk."""
        assert self._seal is not None, "closed before"
        digest, header_digest, size = self._seal.result()
        path = self._path.with_name(shard_name(stem, place, count))
        os.replace(self._path, path)
        self._path = path
        return ArtifactFile(path.name, digest, size, header_digest)

    def discard(self) -> None:
        self._file.close()
        with contextlib.suppress(FileNotFoundError):
            self._path.unlink()

    def _append(self, name: str, tensor: torch.Tensor) -> None:
        begin = self.data_bytes
        plain = tensor.detach().to("cpu").contiguous().reshape(-1)
        if plain.numel():
            self._file.write(plain.view(torch.uint8).numpy().data)
        self.data_bytes += plain.numel() * plain.element_size()
        self.entries[name] = (_CODES[tensor.dtype], list(tensor.shape), begin, self.data_bytes)

    def _write_header(self) -> None:
        table: dict[str, Any] = {"__metadata__": {"format": "pt"}}
        for name, (code, shape, begin, end) in self.entries.items():
            table[name] = {"dtype": code, "shape": shape, "data_offsets": [begin, end]}
        header = json.dumps(table, separators=(",", ":")).encode()
        room = self._room
        if len(header) > room:
            raise AssertionError(f"a header of {len(header)} bytes outgrew its room of {room}")
        self._file.seek(0)
        # The format lets a header end in spaces.
        self._file.write(room.to_bytes(8, "little") + header.ljust(room))


def _seal(path: Path, header_bytes: int) -> tuple[str, str, int]:
    """Puts a file on disk; returns its sha256, its header's, and its size."""
    whole, size = hashlib.sha256(), 0
    with path.open("rb") as file:
        start = file.read(header_bytes)
        whole.update(start)
        size += len(start)
        while piece := file.read(COPY_BYTES):
            whole.update(piece)
            size += len(piece)
        os.fsync(file.fileno())
    return whole.hexdigest(), hashlib.sha256(start).hexdigest(), size


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
