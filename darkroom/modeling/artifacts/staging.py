"""Tensors from files onto a GPU: pieces of the files by threads into pinned buffers, buffers by the copy engine.

Both run beside each other: page by page through a mapping, one waits for the other. Knows nothing of file formats.
Invariants: a buffer is filled again only after its copies are done; no more than the buffers is held on the host, and
nothing but the tensors on the device.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch

from darkroom.rpc.errors import CorruptCheckpointError

# Pinned memory that is read into while earlier pieces are copied.
PIECE_BYTES, NUM_PIECES = 32 * 2**20, 6


@dataclass(frozen=True)
class Place:
    """Where a tensor lies."""

    path: Path
    dtype: torch.dtype
    shape: tuple[int, ...]
    begin: int
    end: int


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


class Lane(Protocol):
    """Buffers on the host, and what copies out of them in order, later."""

    @property
    def buffers(self) -> Sequence[torch.Tensor]:
        """On the host, all of one size."""

    def copy(self, slot: int, copies: Sequence[Copy]) -> None:
        """Has a buffer's stretches copied to their tensors."""

    def wait(self, slot: int) -> None:
        """Returns once the last copies out of a buffer are done; at once where there were none."""

    def finish(self) -> None:
        """Returns once all copies are done."""


class CudaLane:
    """Pinned buffers and a stream."""

    def __init__(self, device: torch.device) -> None:
        self.buffers = [torch.empty(PIECE_BYTES, dtype=torch.uint8, pin_memory=True) for _ in range(NUM_PIECES)]
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        # Tensors are allocated in the current stream's order.
        self._current = torch.cuda.current_stream(device)
        self._copied: list[torch.cuda.Event | None] = [None] * NUM_PIECES

    def copy(self, slot: int, copies: Sequence[Copy]) -> None:
        self._stream.wait_stream(self._current)
        with torch.cuda.stream(self._stream):
            copy_out(self.buffers[slot], copies)
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record(self._stream)
        self._copied[slot] = event

    def wait(self, slot: int) -> None:
        if (event := self._copied[slot]) is not None:
            event.synchronize()

    def finish(self) -> None:
        self._stream.synchronize()


def copy_out(buffer: torch.Tensor, copies: Sequence[Copy]) -> None:
    """Copies a buffer's stretches to their tensors, in the current stream."""
    for copy in copies:
        target = copy.target[copy.offset : copy.offset + copy.length]
        target.copy_(buffer[copy.source : copy.source + copy.length], non_blocking=True)


def stage(
    places: Mapping[str, Place], device: torch.device, lane: Lane, read: Callable[[int], None] = lambda count: None
) -> dict[str, torch.Tensor]:
    """Returns the tensors on a device.

    Args:
        places: by name.
        device: where they go.
        lane: that gets them there.
        read: told how many bytes are on their way, again and again; may raise to stop.

    Raises:
        CorruptCheckpointError: a file ends early.
    """
    targets = {
        name: torch.empty(place.end - place.begin, dtype=torch.uint8, device=device) for name, place in places.items()
    }
    pieces = list(cut_into_pieces(places, targets, lane.buffers[0].numel()))
    handles = {path: os.open(path, os.O_RDONLY) for path in {piece.path for piece in pieces}}
    try:
        with ThreadPoolExecutor(len(lane.buffers), thread_name_prefix="stage") as pool:
            _run(pieces, handles, lane, pool, read)
    finally:
        for handle in handles.values():
            os.close(handle)
    return {name: targets[name].view(place.dtype).reshape(place.shape) for name, place in places.items()}


def _run(
    pieces: Iterable[Piece],
    handles: Mapping[Path, int],
    lane: Lane,
    pool: ThreadPoolExecutor,
    read: Callable[[int], None],
) -> None:
    waiting: list[tuple[int, Piece, Future[None]]] = []

    def send_oldest() -> None:
        slot, piece, filling = waiting.pop(0)
        filling.result()
        lane.copy(slot, piece.copies)
        read(piece.end - piece.begin)

    try:
        for place, piece in enumerate(pieces):
            slot = place % len(lane.buffers)
            if len(waiting) == len(lane.buffers):
                send_oldest()
            lane.wait(slot)
            waiting.append((slot, piece, pool.submit(_fill, piece, handles[piece.path], lane.buffers[slot])))
        while waiting:
            send_oldest()
    finally:
        for _, _, filling in waiting:
            filling.cancel()
        lane.finish()


def _fill(piece: Piece, handle: int, buffer: torch.Tensor) -> None:
    view, done, length = buffer.numpy().data, 0, piece.end - piece.begin
    while done < length:
        count = os.preadv(handle, [view[done:length]], piece.begin + done)
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
