"""Weights that a file keeps in float8, kept so: read as wider numbers, they go back to float8 without changing.

Knows nothing of files. Invariant: what a layer computes does not change by a bit.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from diffusers.hooks.layerwise_casting import apply_layerwise_casting_hook
from torch import nn

FLOAT8 = torch.float8_e4m3fn


def keep_float8(module: nn.Module, compute_type: torch.dtype, check: Callable[[], None] = lambda: None) -> int:
    """Stores in float8 every linear layer whose numbers all are float8 numbers, and computes it as before.

    Names are not asked: they change when a file of the original code is read.

    Args:
        module: read in `compute_type`.
        compute_type: what layers compute in.
        check: called between layers; may raise to stop.

    Returns:
        How many layers.
    """
    num_layers = 0
    for layer in module.modules():
        if not isinstance(layer, nn.Linear):
            continue
        check()
        if all(_is_float8(parameter) for parameter in layer.parameters()):
            apply_layerwise_casting_hook(layer, FLOAT8, compute_type, non_blocking=False)
            num_layers += 1
    return num_layers


def _is_float8(values: torch.Tensor) -> bool:
    return torch.equal(values.to(FLOAT8).to(values.dtype), values)
