"""One safetensors file that is written tensor by tensor.

    room for the header | tensors that fill whole lines of 64 bytes, as they come | the odd rest, widest types first

The header's room is kept free at the front and filled in last: nothing is written twice. Knows nothing of subclasses.
Invariant: every tensor lies at a multiple of its item's size, which mapped memory needs.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, BinaryIO

import torch

from darkroom.artifacts.manifest import ArtifactFile
from darkroom.artifacts.names import shard_name

# Data begins at a page; tensors that fill whole lines keep every following one at a line.
PAGE_BYTES, LINE_BYTES = 4096, 64
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


class Shard:
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
