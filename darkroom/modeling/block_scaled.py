"""Weights whose scales are shared by blocks of 32 or 16 numbers: mxfp8 and nvfp4.

Their products need units that GPUs have from compute capability 10.0 on; how they compute there is unverified on
hardware. On a processor mxfp8 is emulated and nvfp4 multiplies dense copies of its weights, for making artifacts and
for tests. Invariant: what a device has no units for is refused, never computed another way unasked.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import nn

from darkroom.rpc.errors import PlanRefusedError
from darkroom.v1 import device_pb2, plan_pb2

MXFP8, NVFP4 = device_pb2.SCHEME_MXFP8, device_pb2.SCHEME_NVFP4
LEAST_CAPABILITY = (10, 0)


def block_scaled(weight: torch.Tensor, scheme: int, recipe: plan_pb2.QuantisationRecipe) -> torch.Tensor:
    """Returns the weight in MXFP8 or NVFP4.

    Args:
        weight: bfloat16 (nvfp4: any), output by input features, multiples of 32 (nvfp4: 16), where it will compute.
        scheme: MXFP8 or NVFP4.
        recipe: whether activations stay dense.

    Raises:
        PlanRefusedError: the device has no units for it.
    """
    return _mxfp8(weight) if scheme == MXFP8 else _nvfp4(weight, recipe.weight_only)


def settle(weight: torch.Tensor, scheme: int, recipe: plan_pb2.QuantisationRecipe) -> None:
    """Has a weight that was made elsewhere multiplied as one that is made here: the numbers are the same.

    Args:
        weight: torchao's tensor, where it will compute.
        scheme: MXFP8 or NVFP4.
        recipe: whether activations stay dense.

    Raises:
        PlanRefusedError: the device has no units for it.
    """
    from torchao.prototype.mx_formats.nvfp4_tensor import QuantizeTensorToNVFP4Kwargs
    from torchao.quantization.quantize_.common import KernelPreference

    tensor: Any = weight
    is_processor = weight.device.type == "cpu"
    if not is_processor and not recipe.weight_only:
        _check_units(weight.device, device_pb2.Scheme.Name(scheme).removeprefix("SCHEME_").lower())  # type: ignore[arg-type]
    if scheme == MXFP8:
        kernel = KernelPreference.EMULATED if is_processor else KernelPreference.AUTO
        tensor.kernel_preference = kernel
        tensor.act_quant_kwargs = dataclasses.replace(tensor.act_quant_kwargs, kernel_preference=kernel)
    elif is_processor or recipe.weight_only:
        tensor.act_quant_kwargs = None
    else:
        tensor.act_quant_kwargs = QuantizeTensorToNVFP4Kwargs(
            use_dynamic_per_tensor_scale=True, use_triton_kernel=False, is_swizzled_scales=True
        )


def has_units(device: torch.device) -> bool:
    """Tells whether a device multiplies numbers with block scales by itself."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= LEAST_CAPABILITY


def linear_around(weight: torch.Tensor) -> nn.Linear:
    """A linear layer around a weight, for what torchao takes modules for."""
    with torch.device("meta"):
        holder = nn.Linear(weight.shape[1], weight.shape[0], bias=False)
    holder.weight = nn.Parameter(weight.data, requires_grad=False)
    return holder


def _mxfp8(weight: torch.Tensor) -> torch.Tensor:
    """e4m3 numbers with one power of two for 32 of them, activations alike."""
    from torchao.prototype.mx_formats import MXDynamicActivationMXWeightConfig
    from torchao.quantization import quantize_
    from torchao.quantization.quantize_.common import KernelPreference

    is_emulated = weight.device.type == "cpu"
    if not is_emulated:
        _check_units(weight.device, "mxfp8")
    kernel = KernelPreference.EMULATED if is_emulated else KernelPreference.AUTO
    holder = linear_around(weight)
    quantize_(holder, MXDynamicActivationMXWeightConfig(kernel_preference=kernel))
    return holder.weight.data


def _nvfp4(weight: torch.Tensor, is_weight_only: bool) -> torch.Tensor:
    """e2m1 numbers with one e4m3 scale for 16 of them and one float32 for all; activations alike, or dense."""
    from torchao.prototype.mx_formats import NVFP4DynamicActivationNVFP4WeightConfig, NVFP4WeightOnlyConfig
    from torchao.quantization import quantize_

    holder = linear_around(weight)
    if is_weight_only or weight.device.type == "cpu":
        quantize_(holder, NVFP4WeightOnlyConfig())
        return holder.weight.data
    _check_units(weight.device, "nvfp4")
    # The Triton kernel wants one more package and rows by the 128.
    quantize_(holder, NVFP4DynamicActivationNVFP4WeightConfig(use_triton_kernel=False))
    return holder.weight.data


def _check_units(device: torch.device, word: str) -> None:
    if not has_units(device):
        raise PlanRefusedError(f"{word} needs a GPU of compute capability {LEAST_CAPABILITY[0]}.0 or more")
