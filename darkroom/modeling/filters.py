"""Which layers a recipe touches: one filter for quantising, for building artifacts and for counting bytes.

Decides on names, shapes and types, so that it serves live modules, skeletons and file headers alike; knows nothing of
kernels. Invariant: a layer that it does not take stays dense, and so does one whose name is unknown.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn

from darkroom.v1 import plan_pb2

# Adapters are attached before quantising and stay dense.
ADAPTER_NAME = "lora_"
CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
Layer = nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d | nn.ConvTranspose1d | nn.ConvTranspose2d | nn.ConvTranspose3d


def takes(
    recipe: plan_pb2.QuantisationRecipe, name: str, in_features: int, out_features: int, is_bfloat16: bool = True
) -> bool:
    """Tells whether a layer is quantised.

    Args:
        recipe: least features, divisibility and names to leave dense.
        name: qualified name within its component: "transformer_blocks.0.attn.to_q".
        in_features: columns of its weight.
        out_features: rows of its weight.
        is_bfloat16: False for a layer that is kept in another type.
    """
    if not name or is_excluded(recipe, name):
        return False
    if recipe.requires_bfloat16 and not is_bfloat16:
        return False
    multiple = max(1, recipe.feature_multiple)
    features = (in_features, out_features)
    return min(features) >= recipe.min_features and all(count % multiple == 0 for count in features)


def is_excluded(recipe: plan_pb2.QuantisationRecipe, name: str) -> bool:
    """Tells whether a layer stays dense because of its name."""
    return name in recipe.exclude_exactly or any(part in name for part in (ADAPTER_NAME, *recipe.exclude_names))


def taken_layers(module: nn.Module, recipe: plan_pb2.QuantisationRecipe) -> Iterator[tuple[str, Layer]]:
    """Yields the layers of a module that the recipe takes, in the module's order.

    One that shares its weight with an embedding, as a tied output layer does, stays dense: embeddings do.
    """
    embedded = {id(part.weight) for part in module.modules() if isinstance(part, nn.Embedding)}
    kinds = (nn.Linear, *CONVOLUTIONS) if recipe.takes_convolutions else (nn.Linear,)
    kept = kept_float32(module)
    for name, layer in module.named_modules():
        if not isinstance(layer, kinds):
            continue
        weight = layer.weight
        if id(weight) in embedded:
            continue
        is_bfloat16 = f"{name}.weight" not in kept if weight.is_meta else weight.dtype == torch.bfloat16
        if takes(recipe, name, weight.shape[1], weight.shape[0], is_bfloat16):
            yield name, layer


def kept_float32(module: nn.Module) -> frozenset[str]:
    """Returns the names of parameters that a load in a lower type leaves in float32 (diffusers 0.42 rule).

    transformers keeps `_keep_in_fp32_modules` for float16 alone, so its models keep none in bfloat16.
    """
    if type(module).__module__.startswith("transformers."):
        return frozenset()
    kept = frozenset(getattr(module, "_keep_in_fp32_modules", None) or ())
    return frozenset(name for name, _ in module.named_parameters() if not kept.isdisjoint(name.split(".")))
