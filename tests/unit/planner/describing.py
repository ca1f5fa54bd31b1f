"""Devices as a worker would describe them."""

from __future__ import annotations

from darkroom.v1 import device_pb2

GIB = 1 << 30


def cpu(total_gib: int = 16, has_native_bf16: bool = False, foreign: int = 2 * GIB) -> device_pb2.Device:
    memory = device_pb2.DeviceMemory(
        total_bytes=total_gib * GIB, free_bytes=total_gib * GIB - foreign, foreign_bytes=foreign
    )
    return device_pb2.Device(
        id="cpu",
        kind=device_pb2.DEVICE_KIND_CPU,
        name="a processor",
        has_unified_memory=True,
        has_native_bf16=has_native_bf16,
        memory=memory,
    )


def gpu(
    name: str,
    capability: tuple[int, int],
    total: int,
    foreign: int = 0,
    probes: dict[int, bool] | None = None,
) -> device_pb2.Device:
    """A CUDA device: described where `probes` is None, present otherwise."""
    return device_pb2.Device(
        id="cuda:0",
        kind=device_pb2.DEVICE_KIND_CUDA,
        name=name,
        capability=device_pb2.ComputeCapability(major=capability[0], minor=capability[1]),
        has_native_bf16=capability >= (8, 0),
        memory=device_pb2.DeviceMemory(total_bytes=total, free_bytes=total - foreign, foreign_bytes=foreign),
        probes=[device_pb2.SchemeProbe(scheme=scheme, works=works) for scheme, works in (probes or {}).items()],  # type: ignore[arg-type]
        is_assumed=probes is None,
    )
