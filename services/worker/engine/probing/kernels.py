"""Attention kernels of packages that are installed here and that this device may run; each is then tried.

Knows nothing of how a trial ends. Invariant: a package is looked up, never imported, in the engine's own process.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util

import torch

from darkroom.v1 import plan_pb2

# Kernel, module, distribution, least and greatest CUDA capability. FlashAttention 2 and SageAttention need Ampere's
# tensor cores, FlashAttention 3 is Hopper's alone. FlashAttention 4 and AITER come by download only (diffusers 0.42).
KERNELS = (
    (plan_pb2.ATTENTION_BACKEND_FLASH, "flash", "flash_attn", "flash-attn", (8, 0), (99, 0)),
    (plan_pb2.ATTENTION_BACKEND_FLASH3, "flash3", "flash_attn_interface", "flash-attn-3", (9, 0), (9, 9)),
    (plan_pb2.ATTENTION_BACKEND_SAGE, "sage", "sageattention", "sageattention", (8, 0), (99, 0)),
    (plan_pb2.ATTENTION_BACKEND_XFORMERS, "xformers", "xformers", "xformers", (7, 0), (99, 0)),
)
BACKENDS: dict[str, int] = {name: backend for backend, name, *_ in KERNELS}


def installed_kernels(device: torch.device) -> list[str]:
    """Returns "name@version" of the kernels to try on this device."""
    if device.type != "cuda" or torch.version.hip or not torch.cuda.is_available():
        return []
    return kernels_for(torch.cuda.get_device_capability(device))


def kernels_for(capability: tuple[int, int]) -> list[str]:
    """As above, for a capability."""
    return [
        f"{name}@{_version(distribution)}"
        for _, name, module, distribution, least, most in KERNELS
        if least <= capability <= most and importlib.util.find_spec(module) is not None
    ]


def kernel_name(item: str) -> str:
    """The kernel that an item names; empty for another kind of item."""
    name, found, _ = item.partition("@")
    return name if found else ""


def _version(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"
