"""Plain tensors out of safetensors files, straight to a device.

On the processor they are views of the mapped file. On a GPU, threads copy pieces of the files into pinned buffers, and
the copies to the device run beside them. Knows nothing of modules or manifests. Invariant: no more than the buffers is
held on the host, and nothing but the tensors on the device.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from darkroom.rpc.errors import CorruptCheckpointError

# Pinned memory that is read into while earlier pieces are copied.
PIECE_BYTES, NUM_PIECES = 32 * 2**20, 6
# By the format; the inverse of what is written.
_DTYPES = {
    "BOOL": torch.bool, "U8": torch.uint8, "I8": torch.int8, "I16": torch.int16, "U16": torch.uint16,
    "I32": torch.int32, "U32": torch.uint32, "I64": torch.int64, "U64": torch.uint64, "F16": torch.float16,
    "BF16": torch.bfloat16, "F32": torch.float32, "F64": torch.float64, "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2, "F8_E8M0": torch.float8_e8m0fnu,
}  # fmt: skip


@dataclass(frozen=True)
class Place:
    """Where a tensor lies."""

    path: Path
    dtype: torch.dtype
    shape: tuple[int, ...]
    begin: int
    end: int


def places_in(path: Path) -> dict[str, Place]:
    """Returns every tensor of a safetensors file, by its header. Raises CorruptCheckpointError."""
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        try:
            header = json.loads(file.read(min(length, size)))
            header.pop("__metadata__", None)
            return {name: _place(path, entry, 8 + length, size) for name, entry in header.items()}
        except (ValueError, KeyError, TypeError, AttributeError) as garbage:
            raise CorruptCheckpointError(f"{path.name} has a header that can't be read", file=path.name) from garbage


def _place(path: Path, entry: Mapping[str, Any], start: int, size: int) -> Place:
    dtype, shape = _DTYPES[entry["dtype"]], tuple(int(extent) for extent in entry["shape"])
    begin, end = (start + offset for offset in entry["data_offsets"])
    count = 1
    for extent in shape:
        count *= extent
    if not start <= begin <= end <= size or count * dtype.itemsize != end - begin:
        raise ValueError("offsets")
    return Place(path, dtype, shape, begin, end)


def read_tensors(
    places: Mapping[str, Place], device: torch.device, read: Callable[[int], None] = lambda count: None
) -> dict[str, torch.Tensor]:
    """Returns the tensors on a device.

    Args:
        places: by name.
        device: where they go.
        read: told how many bytes arrived, again and again; may raise to stop.
    """
    if device.type == "cuda":
        return _Pipeline(device, read).read(places)
    tensors = {}
    for path in dict.fromkeys(place.path for place in places.values()):
        with safe_open(path, "pt") as file:
            for name, place in places.items():
                if place.path == path:
                    tensors[name] = file.get_tensor(name).to(device)
                    read(place.end - place.begin)
    return tensors


@dataclass(frozen=True)
class Copy:
    """A stretch of a piece that belongs to a tensor."""

    target: torch.Tensor
    offset: int
    source: int
    length: int


@dataclass
class Piece:
    """A stretch of a file, at most a buffer long."""

    path: Path
    begin: int
    end: int
    copies: list[Copy]


class _Pipeline:
    """Files into pinned buffers by threads, buffers onto the device by its copy engine, both at once."""

    def __init__(self, device: torch.device, read: Callable[[int], None]) -> None:
        self._device, self._read = device, read
        self._handles: dict[Path, int] = {}

    def read(self, places: Mapping[str, Place]) -> dict[str, torch.Tensor]:
        bytes_by_name = {
            name: torch.empty(place.end - place.begin, dtype=torch.uint8, device=self._device)
            for name, place in places.items()
        }
        pieces = list(cut_into_pieces(places, bytes_by_name))
        self._handles = {path: os.open(path, os.O_RDONLY) for path in {piece.path for piece in pieces}}
        try:
            with ThreadPoolExecutor(NUM_PIECES, thread_name_prefix="read") as pool:
                self._run(pieces, pool)
        finally:
            for handle in self._handles.values():
                os.close(handle)
        return {name: bytes_by_name[name].view(place.dtype).reshape(place.shape) for name, place in places.items()}

    def _run(self, pieces: list[Piece], pool: ThreadPoolExecutor) -> None:
        stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream(self._device))
        buffers = [torch.empty(PIECE_BYTES, dtype=torch.uint8, pin_memory=True) for _ in range(NUM_PIECES)]
        freed: list[torch.cuda.Event | None] = [None] * NUM_PIECES
        waiting: list[tuple[int, Piece, Future[None]]] = []
        try:
            for place, piece in enumerate(pieces):
                slot = place % NUM_PIECES
                if len(waiting) == NUM_PIECES:
                    self._copy(*waiting.pop(0), buffers, freed, stream)
                if (event := freed[slot]) is not None:
                    event.synchronize()
                waiting.append((slot, piece, pool.submit(self._fill, piece, buffers[slot])))
            while waiting:
                self._copy(*waiting.pop(0), buffers, freed, stream)
        finally:
            for _, _, filling in waiting:
                filling.cancel()
            stream.synchronize()

    def _copy(
        self,
        slot: int,
        piece: Piece,
        filling: Future[None],
        buffers: list[torch.Tensor],
        freed: list[torch.cuda.Event | None],
        stream: torch.cuda.Stream,
    ) -> None:
        filling.result()
        with torch.cuda.stream(stream):
            for copy in piece.copies:
                target = copy.target[copy.offset : copy.offset + copy.length]
                target.copy_(buffers[slot][copy.source : copy.source + copy.length], non_blocking=True)
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record(stream)
        freed[slot] = event
        self._read(piece.end - piece.begin)

    def _fill(self, piece: Piece, buffer: torch.Tensor) -> None:
        view, done = buffer.numpy().data, 0
        length = piece.end - piece.begin
        while done < length:
            count = os.preadv(self._handles[piece.path], [view[done:length]], piece.begin + done)
            if not count:
                raise CorruptCheckpointError(f"{piece.path.name} ended early", file=piece.path.name)
            done += count


def cut_into_pieces(
    places: Mapping[str, Place], targets: Mapping[str, torch.Tensor], piece_bytes: int = PIECE_BYTES
) -> Iterator[Piece]:
    """Cuts the tensors' bytes into pieces: neighbours share one, the large are spread over several."""
    piece: Piece | None = None
    for name, place in _in_file_order(places):
        done = 0
        while done < place.end - place.begin:
            at = place.begin + done
            if piece is None or piece.path != place.path or piece.end != at or at - piece.begin >= piece_bytes:
                if piece is not None:
                    yield piece
                piece = Piece(place.path, at, at, [])
            length = min(place.end - at, piece_bytes - (at - piece.begin))
            piece.copies.append(Copy(targets[name], done, at - piece.begin, length))
            piece.end += length
            done += length
    if piece is not None:
        yield piece


def _in_file_order(places: Mapping[str, Place]) -> Iterable[tuple[str, Place]]:
    return sorted(places.items(), key=lambda item: (str(item[1].path), item[1].begin))
