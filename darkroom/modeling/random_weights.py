"""Weights that are random numbers: any device can be measured with full-size models, and nothing is downloaded.

Knows nothing of plans or pipelines. Invariants: types are those of a real load, numbers that stay float32 included; a
seed gives the same weights on the same kind of device; no more than one tensor is on the device that does not stay.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from accelerate import init_empty_weights
from torch import nn

from darkroom.modeling.filters import kept_float32

SEED = 0
# Small enough that dozens of layers stay finite in half precision.
SPREAD = 0.02


def build_random(
    construct: Callable[[], nn.Module], compute_type: torch.dtype, drawn_on: torch.device, rests_on: torch.device
) -> nn.Module:
    """Returns a module with random weights, in evaluation mode: matrices are normal, vectors ones, biases zero.

    Args:
        construct: makes the module in PyTorch's default type.
        compute_type: of the weights.
        drawn_on: the device that draws them, where full-size ones take seconds.
        rests_on: where they lie afterwards.
    """
    before = torch.get_default_dtype()
    torch.set_default_dtype(compute_type)
    try:
        with init_empty_weights(include_buffers=False):
            module = construct()
    finally:
        torch.set_default_dtype(before)
    _fill(module, compute_type, torch.Generator(drawn_on).manual_seed(SEED), rests_on)
    return module.to(rests_on).eval().requires_grad_(False)


def _fill(module: nn.Module, compute_type: torch.dtype, generator: torch.Generator, rests_on: torch.device) -> None:
    kept = kept_float32(module)
    for prefix, owner in module.named_modules():
        for name, empty in list(owner._parameters.items()):
            if empty is None:
                continue
            whole_name = f"{prefix}.{name}" if prefix else name
            # Not the type it was made in: a configuration of transformers may name one of its own.
            values = _draw(name, empty.shape, torch.float32 if whole_name in kept else compute_type, generator)
            owner._parameters[name] = nn.Parameter(values.to(rests_on), requires_grad=False)
    if (tie := getattr(module, "tie_weights", None)) is not None:
        tie()


def _draw(name: str, shape: torch.Size, dtype: torch.dtype, generator: torch.Generator) -> torch.Tensor:
    values = torch.empty(shape, dtype=dtype, device=generator.device)
    if len(shape) > 1:
        return values.normal_(std=SPREAD, generator=generator)
    return values.fill_(0.0 if name.endswith("bias") else 1.0)
