"""Which class a device belongs to: consumer or data-centre, and which generation.

Knows nothing of models or schemes. Invariant: names are compared by whole words, so that an A4000 is no A40, and an
unknown name counts as a consumer part.
"""

from __future__ import annotations

import re

from darkroom.knowledge.family import DeviceFacts
from darkroom.v1 import device_pb2

# Words that name data-centre parts.
# fmt: off
DATACENTER_WORDS = frozenset((
    "B100", "B200", "B300", "GB10", "GB200", "GB300", "H20", "H100", "H200", "H800", "GH200", "A2", "A10", "A16", "A30",
    "A40", "A100", "A800", "L2", "L4", "L20", "L40", "L40S", "T4", "P40", "P100", "V100",
))
# fmt: on
PROFESSIONAL_NAMES = ("RTX PRO 6000", "RTX 6000 ADA")
_KINDS = {
    device_pb2.DEVICE_KIND_CPU: "cpu",
    device_pb2.DEVICE_KIND_MPS: "mps",
    device_pb2.DEVICE_KIND_XPU: "xpu",
    device_pb2.DEVICE_KIND_ROCM: "rocm",
}


def is_consumer(name: str) -> bool:
    """Tells whether an NVIDIA device name means a consumer part."""
    upper = name.upper()
    if "GEFORCE" in upper or "TITAN" in upper:
        return True
    if any(professional in upper for professional in PROFESSIONAL_NAMES):
        return False
    return not DATACENTER_WORDS & set(re.findall(r"[A-Z0-9]+", upper))


def capability_of(device: device_pb2.Device) -> tuple[int, int]:
    """Returns the CUDA compute capability; (0, 0) where there is none."""
    return (device.capability.major, device.capability.minor)


def class_of(device: device_pb2.Device) -> str:
    """Returns the key of the device's class in the catalogue: "hopper", "ada-consumer", "cpu"."""
    if device.kind in _KINDS:
        return _KINDS[device.kind]
    capability = capability_of(device)
    market = "consumer" if is_consumer(device.name) else "datacenter"
    if capability >= (10, 0):
        return f"blackwell-{market}"
    if capability >= (9, 0):
        return "hopper"
    if capability >= (8, 9):
        return f"ada-{market}"
    return "ampere" if capability >= (8, 0) else "before-ampere"


def describe_device(key: str, facts: DeviceFacts) -> device_pb2.Device:
    """Returns a device as a worker would describe it, idle and with nothing else on it, marked as assumed."""
    is_host = facts.kind == device_pb2.DEVICE_KIND_CPU
    device = device_pb2.Device(
        id=key,
        kind=facts.kind,
        name=facts.name,
        has_unified_memory=facts.has_unified_memory,
        has_native_bf16=facts.has_native_bf16,
        memory=device_pb2.DeviceMemory(total_bytes=facts.memory_bytes, free_bytes=facts.memory_bytes),
        is_assumed=True,
        can_compile=not is_host and facts.kind != device_pb2.DEVICE_KIND_MPS,
        host_link_bytes_per_second=facts.link_bytes_per_second,
    )
    if facts.capability:
        device.capability.major, device.capability.minor = facts.capability
    return device
