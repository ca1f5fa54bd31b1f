"""Layers that see too few rows for a kernel: their input is padded, where that is proven to change no bit.

`torch._int_mm` takes more than 16 rows on a GPU, and some layers see one for each picture. Letters: R rows, K input
features. Invariant: a padded layer gives for each row, bit for bit, what it gives within a full batch.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

# Next multiple of 16 above the least that the kernel takes.
PADDED_ROWS = 32
PROVEN_ROWS = (1, 13, 16)


def pad_rows(layer: nn.Module, min_rows: int, compute_type: torch.dtype) -> bool:
    """Pads the layer's input wherever it has fewer than `min_rows` rows. Returns whether that is proven exact; a layer
    that fails the proof is left as it was."""
    hooks = (
        layer.register_forward_pre_hook(_Padding(min_rows)),
        layer.register_forward_hook(_cut),
    )
    if _is_exact(layer, compute_type):
        return True
    for hook in hooks:
        hook.remove()
    return False


class _Padding:
    """Pads, and notes on the module how many rows there were."""

    def __init__(self, min_rows: int) -> None:
        self._min_rows = min_rows

    def __call__(self, module: Any, args: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...] | None:
        values = args[0]
        num_rows = values.numel() // values.shape[-1]
        module._darkroom_shape = None
        if not 0 < num_rows < self._min_rows:
            return None
        module._darkroom_shape = values.shape[:-1]
        padded_RK = values.new_zeros(PADDED_ROWS, values.shape[-1])
        padded_RK[:num_rows] = values.reshape(num_rows, -1)
        return (padded_RK, *args[1:])


def _cut(module: Any, args: tuple[torch.Tensor, ...], output: torch.Tensor) -> torch.Tensor | None:
    shape = module._darkroom_shape
    return None if shape is None else output[: shape.numel()].reshape(*shape, -1)


def _is_exact(layer: Any, compute_type: torch.dtype) -> bool:
    generator = torch.Generator("cpu").manual_seed(0)
    rows_RK = torch.randn(PADDED_ROWS, layer.in_features, generator=generator)
    rows_RK = rows_RK.to(layer.weight.device, compute_type)
    with torch.inference_mode():
        whole = layer(rows_RK)
        return all(torch.equal(layer(rows_RK[:count]), whole[:count]) for count in PROVEN_ROWS)
