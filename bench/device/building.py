"""Architectures of the catalogue with random weights, drawn on the device they run on: full-size ones take seconds.

Knows nothing of what is measured. Invariant: types are those of a real load, numbers that stay float32 included.
"""

from __future__ import annotations

import torch
from torch import nn

from darkroom.knowledge import Architecture, Catalogue
from darkroom.knowledge.recipes import recipe_of
from darkroom.modeling.quantise import Quantised
from darkroom.modeling.quantise import quantise as quantise_layers
from darkroom.modeling.random_weights import build_random
from darkroom.modeling.skeleton import build_skeleton
from darkroom.v1.device_pb2 import Scheme


def build(
    catalogue: Catalogue, architecture: str, device: torch.device, dtype: torch.dtype = torch.bfloat16
) -> nn.Module:
    """Returns the catalogue's architecture on the device."""
    return build_from(catalogue.architectures[architecture], device, dtype)


def build_from(architecture: Architecture, device: torch.device, dtype: torch.dtype = torch.bfloat16) -> nn.Module:
    """Returns an architecture on the device."""
    return build_random(lambda: build_skeleton(architecture, "cpu"), dtype, device, device)


def quantise(
    catalogue: Catalogue, module: nn.Module, architecture: str, scheme: Scheme.ValueType, device: torch.device
) -> Quantised:
    """Quantises as the worker does, by the catalogue's recipe."""
    recipe = recipe_of(catalogue.schemes[scheme], catalogue.architectures[architecture], scheme)
    return quantise_layers(module, scheme, recipe, torch.bfloat16, device)
