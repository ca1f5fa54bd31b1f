"""Weights with one scale a row, and activations with one a row as they come: int8 and float8.

Knows nothing of modules or recipes' filters. Letters: O output features. Invariant: what torchao makes of a weight is
what is made, but for rows of zeros in float8, which it would make into what is not a number.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch

from darkroom.modeling.block_scaled import linear_around
from darkroom.v1 import device_pb2, plan_pb2

INT8, FP8 = device_pb2.SCHEME_INT8, device_pb2.SCHEME_FP8
FLOAT8 = torch.float8_e4m3fn


def row_scaled(weight: torch.Tensor, scheme: int, recipe: plan_pb2.QuantisationRecipe) -> torch.Tensor:
    """Returns the weight in INT8 or FP8.

    Args:
        weight: output by input features, where it will compute; bfloat16 for FP8.
        scheme: INT8 or FP8.
        recipe: floor under an activation row's scale, and how products are summed.
    """
    return _int8(weight) if scheme == INT8 else _with_rows_of_zeros(weight, recipe)


def _int8(weight: torch.Tensor) -> torch.Tensor:
    """int8 per output channel, activations per token."""
    from torchao.quantization import Int8DynamicActivationInt8WeightConfig, quantize_

    holder = linear_around(weight)
    # Inductor's flags are not torchao's to set: speed modes restore what they find.
    quantize_(holder, _known_only(Int8DynamicActivationInt8WeightConfig, set_inductor_config=False))
    return holder.weight.data


def _with_rows_of_zeros(weight: torch.Tensor, recipe: plan_pb2.QuantisationRecipe) -> torch.Tensor:
    """As `_fp8`, where a row of zeros, whose scale would be 0 and its product not a number, stays a row of zeros."""
    is_zero_O = ~weight.data.any(dim=1)
    if not is_zero_O.any():
        return _fp8(weight, recipe)
    made: Any = _fp8(torch.where(is_zero_O[:, None], torch.ones_like(weight.data), weight.data), recipe)
    made.qdata.view(torch.uint8)[is_zero_O] = 0
    return made  # type: ignore[no-any-return]


def _fp8(weight: torch.Tensor, recipe: plan_pb2.QuantisationRecipe) -> torch.Tensor:
    """float8 e4m3 per row, activations per row with a floor under their scale."""
    from torchao.float8.inference import Float8MMConfig
    from torchao.quantization import Float8DynamicActivationFloat8WeightConfig, PerRow, quantize_
    from torchao.quantization.quantize_.common import KernelPreference

    accumulation = Float8MMConfig(use_fast_accum=recipe.fast_accumulate)
    floor = recipe.activation_floor or None
    if weight.device.type == "cpu":
        return _fp8_on_cpu(weight, accumulation, floor)
    holder = linear_around(weight)
    config = _known_only(
        Float8DynamicActivationFloat8WeightConfig,
        granularity=PerRow(),
        mm_config=accumulation,
        activation_value_lb=floor,
        kernel_preference=KernelPreference.TORCH,
        set_inductor_config=False,
    )
    quantize_(holder, config)
    return holder.weight.data


def _fp8_on_cpu(weight: torch.Tensor, accumulation: Any, floor: float | None) -> torch.Tensor:
    """As quantize_ makes it. torchao 0.18 refuses a processor there, while its kernels run on one: delete this when it
    asks the kernel instead."""
    from torchao.quantization import PerRow
    from torchao.quantization.quantize_.common import KernelPreference
    from torchao.quantization.quantize_.workflows.float8.float8_tensor import (
        Float8Tensor,
        QuantizeTensorToFloat8Kwargs,
    )

    torch_kernels = KernelPreference.TORCH
    activations = QuantizeTensorToFloat8Kwargs(FLOAT8, PerRow(), hp_value_lb=floor, kernel_preference=torch_kernels)
    made: torch.Tensor = Float8Tensor.from_hp(
        weight.data,
        FLOAT8,
        PerRow(),
        mm_config=accumulation,
        kernel_preference=torch_kernels,
        act_quant_kwargs=activations,
    )
    return made


def _known_only(kind: Callable[..., Any], **options: Any) -> Any:
    """Makes a config with the options that this version of torchao has."""
    known = inspect.signature(kind).parameters
    return kind(**{name: value for name, value in options.items() if name in known})
