"""Bytes that modules really fill, quantised tensors included.

Knows nothing of plans. Invariant: a storage that several tensors share is counted once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch


def storage_bytes(modules: Iterable[torch.nn.Module], device: torch.device | None = None) -> int:
    """Bytes of the distinct storages of the modules' parameters and buffers.

    Args:
        modules: each counted once.
        device: count only what lies on a device of this type; None counts all.
    """
    sizes: dict[tuple[str, int], int] = {}
    for module in modules:
        for tensor in (*module.parameters(), *module.buffers()):
            for plain in plain_tensors(tensor):
                if plain.is_meta or (device is not None and plain.device.type != device.type):
                    continue
                storage = plain.untyped_storage()
                key = (str(plain.device), storage.data_ptr())
                sizes[key] = max(storage.nbytes(), sizes.get(key, 0))
    return sum(sizes.values())


def plain_tensors(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """Yields the tensors that a tensor is made of: itself, or what a quantised one wraps."""
    flatten = getattr(tensor, "__tensor_flatten__", None)
    if flatten is None:
        yield tensor
        return
    names, _ = flatten()
    for name in names:
        yield from plain_tensors(getattr(tensor, name))
