"""Skeletons: an architecture on the meta device, built from its class and configuration without any memory.

Knows nothing of weights or where they are. Invariant: parameters and buffers have the shapes of the real model.
"""

from __future__ import annotations

import importlib
from typing import Any

import torch
from torch import nn

from darkroom.knowledge import Architecture
from darkroom.rpc.errors import InvalidCatalogueError


def build_skeleton(architecture: Architecture, device: str = "meta") -> nn.Module:
    """Returns the module, in evaluation mode, with uninitialised parameters on `device`.

    Raises:
        InvalidCatalogueError: the library has no such class, or the class refuses the configuration.
    """
    library, _, name = architecture.class_name.partition(":")
    try:
        module_class = getattr(importlib.import_module(library), name)
        with torch.device(device):
            return construct(module_class, architecture.config).eval()
    except (ImportError, AttributeError, TypeError, ValueError) as fault:
        raise InvalidCatalogueError(f"{architecture.class_name}: {fault}", class_name=name) from fault


def construct(module_class: Any, config: dict[str, Any]) -> nn.Module:
    """Returns a module of diffusers or transformers by the arguments of its class or of its configuration's."""
    if hasattr(module_class, "config_class") and module_class.config_class is not None:  # transformers
        module: nn.Module = module_class(module_class.config_class(**config))
        return module
    return module_class(**config)  # type: ignore[no-any-return]
