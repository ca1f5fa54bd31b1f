"""Layers that may see too few rows for a kernel: their input is padded then, and the rows beyond are cut off.

`torch._int_mm` takes more than 16 rows on a GPU, and cuBLAS has no float8 kernel for wide layers with few. Layers that
see one row a picture, streams of short prompts, pictures of few tokens and experts that few tokens choose are all below
that at times. Letters: R rows, K input features. Invariant: a row's result rests on that row alone.
"""

from __future__ import annotations

import math
import types
from typing import Any

import torch
from torch import nn

# To how many rows: whole tiles of the kernels.
PADDED_ROWS, WIDE_PADDED_ROWS = 32, 512
PROVEN_ROWS = (1, 13, 16)


def guard_rows(layer: nn.Module, min_rows: int) -> None:
    """Has the layer's input padded wherever it has fewer than `min_rows` rows; 0 changes nothing."""
    if not min_rows:
        return
    layer._darkroom_min_rows = min_rows  # type: ignore[assignment]
    layer._darkroom_padded_rows = PADDED_ROWS if min_rows <= PADDED_ROWS else WIDE_PADDED_ROWS  # type: ignore[assignment]
    # By its forward and not by hooks: a compiler sees a branch on a shape, and nothing that is written.
    layer.forward = types.MethodType(_guarded, layer)  # type: ignore[method-assign]


def pad_rows(layer: nn.Module, min_rows: int, compute_type: torch.dtype) -> bool:
    """As `guard_rows`, for a layer that always sees few rows. Returns whether it is proven exact; a layer that fails
    the proof is left as it was."""
    guard_rows(layer, min_rows)
    if _is_exact(layer, compute_type):
        return True
    for name in ("forward", "_darkroom_min_rows", "_darkroom_padded_rows"):
        del layer.__dict__[name]
    return False


def _guarded(self: Any, values: torch.Tensor) -> torch.Tensor:
    num_rows = math.prod(values.shape[:-1])
    plain = type(self).forward
    if num_rows == 0 or num_rows >= self._darkroom_min_rows:
        return plain(self, values)  # type: ignore[no-any-return]
    padded_RK = nn.functional.pad(values.reshape(num_rows, -1), (0, 0, 0, self._darkroom_padded_rows - num_rows))
    return plain(self, padded_RK)[:num_rows].reshape(*values.shape[:-1], -1)  # type: ignore[no-any-return]


def _is_exact(layer: Any, compute_type: torch.dtype) -> bool:
    generator = torch.Generator("cpu").manual_seed(0)
    rows_RK = torch.randn(PADDED_ROWS, layer.in_features, generator=generator)
    rows_RK = rows_RK.to(layer.weight.device, compute_type)
    with torch.inference_mode():
        whole = layer(rows_RK)
        return all(torch.equal(layer(rows_RK[:count]), whole[:count]) for count in PROVEN_ROWS)
