"""Plain tensors out of safetensors files, straight to a device.

On the processor they are views of the mapped file; on a GPU they are staged. Knows nothing of modules or manifests.
Invariant: a place lies inside its file, and has as many bytes as its type and shape say.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from darkroom.modeling.artifacts.staging import CudaLane, Place, stage
from darkroom.rpc.errors import CorruptCheckpointError

# By the format; the inverse of what is written.
_DTYPES = {
    "BOOL": torch.bool, "U8": torch.uint8, "I8": torch.int8, "I16": torch.int16, "U16": torch.uint16,
    "I32": torch.int32, "U32": torch.uint32, "I64": torch.int64, "U64": torch.uint64, "F16": torch.float16,
    "BF16": torch.bfloat16, "F32": torch.float32, "F64": torch.float64, "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2, "F8_E8M0": torch.float8_e8m0fnu,
}  # fmt: skip


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
        return stage(places, device, CudaLane(device), read)
    tensors = {}
    for path in dict.fromkeys(place.path for place in places.values()):
        with safe_open(path, "pt") as file:
            for name, place in places.items():
                if place.path == path:
                    tensors[name] = file.get_tensor(name).to(device)
                    read(place.end - place.begin)
    return tensors
