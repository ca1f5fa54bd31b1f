"""What the header of a weight file says of its tensors: names, types, shapes. No tensor is read; no torch.

Invariant: a header that is returned describes exactly the bytes of its file, as the safetensors format demands.
"""

from __future__ import annotations

import json
import math
import struct
from pathlib import Path
from typing import Any, NamedTuple

from darkroom.rpc.errors import CorruptCheckpointError

# The format's own limit on the header: https://github.com/huggingface/safetensors, "MAX_HEADER_SIZE".
MAX_HEADER_BYTES = 100_000_000
HEADER_LENGTH = struct.Struct("<Q")
# Bits of one number by the names of safetensors 0.8.
BITS = {
    **dict.fromkeys(("F4",), 4),
    **dict.fromkeys(("F6_E2M3", "F6_E3M2"), 6),
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E5M2", "F8_E4M3", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8),
    **dict.fromkeys(("U16", "I16", "F16", "BF16"), 16),
    **dict.fromkeys(("U32", "I32", "F32"), 32),
    **dict.fromkeys(("U64", "I64", "F64", "C64"), 64),
}


class TensorHeader(NamedTuple):
    """A tensor, but for its numbers."""

    # As the file calls it: "BF16", "Q8_0".
    kind: str
    shape: tuple[int, ...]


def read_safetensors(path: Path) -> dict[str, TensorHeader]:
    """Returns the tensors of a safetensors file by name.

    Raises:
        CorruptCheckpointError: says what the file is instead, what contradicts itself, or how many bytes are missing.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(HEADER_LENGTH.size)
        if len(start) < HEADER_LENGTH.size:
            raise corrupt(path, f"is truncated: {size} bytes")
        (length,) = HEADER_LENGTH.unpack(start)
        if length > min(MAX_HEADER_BYTES, size - HEADER_LENGTH.size):
            raise corrupt(path, disguise(start + file.read(256), size))
        try:
            header = json.loads(file.read(length))
            spans = sorted((*entry["data_offsets"], name) for name, entry in header.items() if name != "__metadata__")
            tensors = {name: TensorHeader(header[name]["dtype"], tuple(header[name]["shape"])) for *_, name in spans}
            end = _end_of(path, spans, tensors)
        except (ValueError, KeyError, TypeError, AttributeError, IndexError) as garbage:
            raise corrupt(path, "has a header that can't be read") from garbage
    wanted = HEADER_LENGTH.size + length + end
    if wanted != size:
        raise corrupt(path, f"is truncated or overlong: {size} bytes, {wanted} expected")
    return tensors


def _end_of(path: Path, spans: list[Any], tensors: dict[str, TensorHeader]) -> int:
    """Returns where the last tensor ends, having seen that each has its size and follows the one before."""
    end = 0
    for begin, stop, name in spans:
        kind, shape = tensors[name]
        if min(shape, default=0) < 0 or begin != end or (stop - begin) * 8 != math.prod(shape) * BITS[kind]:
            raise corrupt(path, f"has a header that contradicts itself at {name[:80]!r}")
        end = stop
    return end


def disguise(start: bytes, size: int, kind: str = "safetensors") -> str:
    """Says what a file that is not of its kind seems to be instead."""
    text = start.lstrip().lower()
    if text.startswith(b"version https://git-lfs"):
        return "is a Git LFS pointer, not the file: run `git lfs pull`"
    if text.startswith((b"<!doctype", b"<html", b"<?xml")):
        return "is an HTML page, not the file: the download went wrong"
    if start.startswith((b"PK\x03\x04", b"\x80")):
        return "is a pickled PyTorch file under a wrong name"
    return f"is no {kind} file or is truncated: {size} bytes"


def corrupt(path: Path, problem: str) -> CorruptCheckpointError:
    """Returns the error for a broken file, which is named with its folder."""
    name = f"{path.parent.name}/{path.name}"
    return CorruptCheckpointError(f"{name} {problem}", file=name)
