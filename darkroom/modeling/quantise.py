"""Quantises a module in place: exactly the layers that the recipe takes, in the scheme that the plan names.

Knows nothing of pipelines or plans. Invariants: a module keeps its class; one that is done is left alone when asked
again, and one that was begun and not finished is never used.
"""

from __future__ import annotations

import enum
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from darkroom.modeling.block_scaled import MXFP8, NVFP4, block_scaled, settle
from darkroom.modeling.filters import taken_layers
from darkroom.modeling.padding import guard_rows, pad_rows
from darkroom.modeling.row_scaled import FLOAT8, FP8, INT8, row_scaled
from darkroom.modeling.storage import storage_bytes
from darkroom.rpc.errors import KernelFailedError, PlanRefusedError, SourceRefusedError
from darkroom.v1 import device_pb2, plan_pb2

STORAGE = device_pb2.SCHEME_FP8_STORAGE
# What `quantise` can make. How mxfp8 and nvfp4 compute on the GPUs that have units for them is unverified on hardware.
SCHEMES = frozenset({INT8, FP8, MXFP8, NVFP4, STORAGE})
# On the module: the scheme that is being made, and True once every layer is.
SCHEME_MARK, DONE_MARK = "_darkroom_scheme", "_darkroom_is_quantised"


class Layer(enum.Enum):
    """What became of a layer."""

    QUANTISED = enum.auto()
    # Quantised, and its rows are padded.
    PADDED = enum.auto()
    # Dense: padding its rows was not exact.
    UNPROVEN = enum.auto()


@dataclass(frozen=True)
class Quantised:
    """What was done to a module."""

    num_layers: int
    # Of them, how many have their rows padded; and layers that failed the proof and stayed dense.
    num_padded: int
    num_unproven: int
    bytes_before: int
    bytes_after: int


def quantise(
    module: nn.Module,
    scheme: int,
    recipe: plan_pb2.QuantisationRecipe,
    compute_type: torch.dtype,
    device: torch.device,
    check: Callable[[], None] = lambda: None,
) -> Quantised:
    """Quantises the layers that `recipe` takes.

    Layers are moved to `device` one by one, so that no more than one dense layer is there at a time; the rest of the
    module stays where it is.

    Args:
        module: dense, on the host.
        scheme: one of SCHEMES.
        recipe: which layers, and how.
        compute_type: what float8 storage is cast back to.
        device: where kernels run.
        check: called between layers; may raise to stop.

    Raises:
        PlanRefusedError: no such scheme here.
        KernelFailedError: an earlier attempt stopped midway, or a layer came out dense.
    """
    if scheme not in SCHEMES:
        raise PlanRefusedError(f"{device_pb2.Scheme.Name(scheme)} can't be made on this worker")  # type: ignore[arg-type]
    before = storage_bytes([module])
    if (known := getattr(module, SCHEME_MARK, None)) is not None:
        if known == scheme and getattr(module, DONE_MARK, False):
            return Quantised(0, 0, 0, before, before)
        raise KernelFailedError("this component was quantised halfway or in another scheme; it has to be read again")
    setattr(module, SCHEME_MARK, scheme)
    layers = list(taken_layers(module, recipe))
    outcomes = []
    for name, layer in layers:
        check()
        outcomes.append(quantise_layer(name, layer, scheme, recipe, compute_type, device))
    if scheme == STORAGE:
        _pin_dtype(module, compute_type)
    setattr(module, DONE_MARK, True)
    num_padded, num_unproven = outcomes.count(Layer.PADDED), outcomes.count(Layer.UNPROVEN)
    return Quantised(len(layers) - num_unproven, num_padded, num_unproven, before, storage_bytes([module]))


def accumulates_fast(module: nn.Module) -> bool | None:
    """Tells whether float8 products of this module are summed fast, by its own weights; None where it has none."""
    settings = (getattr(weight.data, "mm_config", None) for weight in module.parameters())
    found = [bool(setting.use_fast_accum) for setting in settings if setting is not None]
    return all(found) if found else None


def quantise_layer(
    name: str,
    layer: nn.Module,
    scheme: int,
    recipe: plan_pb2.QuantisationRecipe,
    compute_type: torch.dtype,
    device: torch.device,
) -> Layer:
    """Quantises one layer that the recipe takes: by itself, for whoever has the rest of the module elsewhere.

    Args:
        name: qualified, within its component.
        layer: dense, anywhere; it is on `device` afterwards, but for float8 storage, which stays where it is.
        scheme: one of SCHEMES.
        recipe: how.
        compute_type: what float8 storage is cast back to.
        device: where kernels run.

    Raises:
        KernelFailedError: it came out dense.
    """
    if scheme == STORAGE:
        _cast(layer, compute_type)
        return Layer.QUANTISED
    dense: Any = layer.weight
    _convert(layer.to(device), scheme, recipe)
    if not any(part in name for part in recipe.pad_names):
        guard_rows(layer, _least_rows(layer, recipe))
        return Layer.QUANTISED
    if pad_rows(layer, recipe.min_rows, compute_type):
        return Layer.PADDED
    layer.weight = nn.Parameter(dense.to(device), requires_grad=False)
    return Layer.UNPROVEN


def adopt(module: nn.Module, scheme: int, recipe: plan_pb2.QuantisationRecipe, compute_type: torch.dtype) -> None:
    """Takes in a module whose weights come quantised: it computes as one that `quantise` made, and counts as done.

    Args:
        module: with the weights of every taken layer in the scheme, where they will compute.
        scheme: one of SCHEMES.
        recipe: as it was quantised by.
        compute_type: what float8 storage is cast back to.

    Raises:
        SourceRefusedError: a layer's rows must be padded, which is not exact on this device; dense weights would serve.
        PlanRefusedError: the device has no units for the scheme.
    """
    setattr(module, SCHEME_MARK, scheme)
    for name, layer in list(taken_layers(module, recipe)):
        if scheme == STORAGE:
            _cast(layer, compute_type)
            continue
        if scheme in (MXFP8, NVFP4):
            settle(layer.weight.data, scheme, recipe)
        if not any(part in name for part in recipe.pad_names):
            guard_rows(layer, _least_rows(layer, recipe))
        elif not pad_rows(layer, recipe.min_rows, compute_type):
            raise SourceRefusedError(f"padding the rows of {name} is not exact on this device, so it has to be dense")
    if scheme == STORAGE:
        _pin_dtype(module, compute_type)
    setattr(module, DONE_MARK, True)


def _least_rows(layer: nn.Module, recipe: plan_pb2.QuantisationRecipe) -> int:
    """How many rows a layer's kernel takes at least."""
    is_wide = recipe.wide_in_features and getattr(layer, "in_features", 0) > recipe.wide_in_features
    return recipe.wide_min_rows if is_wide else recipe.min_rows


def _convert(layer: nn.Module, scheme: int, recipe: plan_pb2.QuantisationRecipe) -> None:
    """Replaces a linear layer's weight by torchao's tensor."""
    weight: Any = layer.weight
    make = row_scaled if scheme in (INT8, FP8) else block_scaled
    quantised = make(weight, scheme, recipe)
    if type(quantised) is type(weight.data) or not hasattr(quantised, "__tensor_flatten__"):
        raise KernelFailedError(f"torchao left a layer of {tuple(weight.shape)} dense, which the recipe takes")
    layer.weight = nn.Parameter(quantised, requires_grad=False)


def _cast(layer: nn.Module, compute_type: torch.dtype) -> None:
    """Stores the layer in float8 and computes it in `compute_type`."""
    from diffusers.hooks.layerwise_casting import apply_layerwise_casting_hook

    apply_layerwise_casting_hook(layer, FLOAT8, compute_type, non_blocking=False)


def _pin_dtype(module: nn.Module, compute_type: torch.dtype) -> None:
    """Has `module.dtype` answer what it computes in: pipelines cast their inputs to it.

    diffusers' models do so by themselves. A subclass would change the class that savers and pipelines look at, so the
    property is put on the class itself, once, and asks the instance.
    """
    if not type(module).__module__.startswith("transformers."):
        return
    kind: Any = type(module)
    module._darkroom_dtype = compute_type  # type: ignore[assignment]
    if "dtype" in vars(kind) and getattr(vars(kind)["dtype"].fget, "is_darkrooms", False):
        return
    kind.dtype = _pinned(kind.dtype)


def _pinned(original: property) -> property:
    assert original.fget is not None
    ask = original.fget

    @functools.wraps(ask)
    def dtype(self: nn.Module) -> Any:
        return self.__dict__.get("_darkroom_dtype") or ask(self)

    dtype.is_darkrooms = True  # type: ignore[attr-defined]
    return property(dtype)
