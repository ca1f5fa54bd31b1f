"""The device as PyTorch sees it: which kind it is, what it can do, and settled readings of its memory.

Knows nothing of pipelines but the bytes that they hold. Invariant: a reading is taken after synchronising, with the
allocator's cache given back, so that free memory is never under-told by our own cache.
"""

from __future__ import annotations

import functools
import importlib.metadata
import platform
import time
from pathlib import Path

import torch

from darkroom.rpc.errors import PlanRefusedError
from darkroom.v1 import device_pb2
from darkroom.v1.device_pb2 import (
    DEVICE_KIND_CPU,
    DEVICE_KIND_CUDA,
    DEVICE_KIND_MPS,
    DEVICE_KIND_ROCM,
    DEVICE_KIND_XPU,
)
from services.worker.engine.host_memory import host_memory

# Settling, as diffusion servers found it necessary: a transient tenant can make an idle card look full, so the largest
# of a few spaced readings counts; a reading that shows the card almost empty ends the wait.
SETTLE_READS = 3
SETTLE_PAUSE_S = 1.0
SETTLED_SLACK_BYTES = 2048 * 2**20
SETTLED_SLACK_SHARE = 0.10


def choose_device(wanted: str) -> torch.device:
    """Returns the device that `wanted` names; "auto" takes the first of CUDA or ROCm, XPU, MPS, CPU.

    Raises:
        PlanRefusedError: there is no such device.
    """
    if wanted != "auto":
        device = torch.device(wanted)
        if device.type != "cpu" and not _is_there(device):
            raise PlanRefusedError(f"this machine has no device {wanted!r}; DARKROOM_WORKER_DEVICE=auto finds one")
        return device
    for name in ("cuda:0", "xpu:0", "mps"):
        if _is_there(torch.device(name)):
            return torch.device(name)
    return torch.device("cpu")


def read_device(device: torch.device, held_bytes: int) -> device_pb2.Device:
    """Takes a settled reading.

    Args:
        device: the one to read.
        held_bytes: what the loaded weights fill, for kinds that can't tell by themselves.
    """
    kind = device_kind(device)
    message = device_pb2.Device(
        id=str(device),
        kind=kind,  # type: ignore[arg-type]
        name=device_name(device),
        has_unified_memory=_is_unified(device),
        has_native_bf16=_has_native_bf16(device),
        memory=_memory(device, held_bytes),
        versions=versions(),
    )
    if kind == DEVICE_KIND_CUDA:
        major, minor = torch.cuda.get_device_capability(device)
        message.capability.CopyFrom(device_pb2.ComputeCapability(major=major, minor=minor))
    return message


def device_kind(device: torch.device) -> int:
    """The DeviceKind of a torch device; ROCm calls itself "cuda"."""
    if device.type == "cuda":
        return DEVICE_KIND_ROCM if torch.version.hip else DEVICE_KIND_CUDA
    return {"xpu": DEVICE_KIND_XPU, "mps": DEVICE_KIND_MPS}.get(device.type, DEVICE_KIND_CPU)


@functools.cache
def versions() -> device_pb2.SoftwareVersions:
    """Versions of what the engine runs on; empty where a package is absent."""

    def version(name: str) -> str:
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            return ""

    return device_pb2.SoftwareVersions(
        torch=version("torch"),
        diffusers=version("diffusers"),
        transformers=version("transformers"),
        torchao=version("torchao"),
    )


def give_back(device: torch.device) -> None:
    """Waits for the device and returns the allocator's cache to it, and pinned memory that nobody uses to the host."""
    if device.type == "cpu":
        return
    backend = getattr(torch, device.type)
    backend.synchronize()
    backend.empty_cache()
    if device.type == "cuda":
        # Before torch 2.12 the public name is missing.
        release = getattr(torch.accelerator, "empty_host_cache", None) or torch._C._host_emptyCache
        release()


def _memory(device: torch.device, held_bytes: int) -> device_pb2.DeviceMemory:
    give_back(device)
    host_free = host_memory()[1]
    if device.type in ("cuda", "xpu"):
        total, free = _settled(device)
        held = getattr(torch, device.type).memory_reserved(device)
    elif device.type == "mps":  # unverified on hardware
        total = torch.mps.recommended_max_memory()
        held = torch.mps.driver_allocated_memory()
        free = min(total - held, host_free)
    else:
        total, free = host_memory()
        held = held_bytes
    return device_pb2.DeviceMemory(
        total_bytes=total,
        free_bytes=free,
        engine_bytes=held,
        foreign_bytes=max(total - free - held, 0),
        host_free_bytes=host_free,
    )


def _settled(device: torch.device) -> tuple[int, int]:
    """(total, largest free of up to three spaced readings) of a discrete device."""
    largest = 0
    for attempt in range(SETTLE_READS):
        if attempt:
            time.sleep(SETTLE_PAUSE_S)
        free, total = getattr(torch, device.type).mem_get_info(device)
        largest = max(largest, free)
        if largest >= total - max(SETTLED_SLACK_BYTES, int(total * SETTLED_SLACK_SHARE)):
            break
    return total, largest


def _is_there(device: torch.device) -> bool:
    if device.type == "mps":
        return torch.backends.mps.is_available()
    backend = getattr(torch, device.type, None)
    return backend is not None and backend.is_available() and (device.index or 0) < backend.device_count()


@functools.cache
def device_name(device: torch.device) -> str:
    """As the driver tells it; the processor's by the kernel."""
    if device.type in ("cuda", "xpu"):
        return str(getattr(torch, device.type).get_device_name(device))
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def _is_unified(device: torch.device) -> bool:
    if device.type == "cuda":
        return bool(getattr(torch.cuda.get_device_properties(device), "is_integrated", False))
    return device.type in ("cpu", "mps")


@functools.cache
def _has_native_bf16(device: torch.device) -> bool:
    """True where bfloat16 has units of its own: Ampere and later, CDNA, XPU; AVX512-BF16 or AMX on a processor."""
    if device.type == "cuda":
        return bool(torch.version.hip) or torch.cuda.get_device_capability(device)[0] >= 8
    if device.type == "xpu":
        return True
    if device.type == "mps":  # emulated on the first generations; unverified on hardware
        return False
    try:
        flags = Path("/proc/cpuinfo").read_text().partition("flags")[2].partition("\n")[0].split()
    except OSError:
        return False
    return not {"avx512_bf16", "amx_bf16"}.isdisjoint(flags)
