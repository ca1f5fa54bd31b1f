"""What the building process holds at most.

Knows nothing of what is built. Invariant: a peak never goes down.
"""

from __future__ import annotations

import os
from pathlib import Path

import psutil  # type: ignore[import-untyped]
import torch

from darkroom.v1 import build_pb2

STATUS = Path("/proc/self/status")


class Peak:
    """Samples of this process; call `sample` wherever much may be held."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._peak = build_pb2.BuildPeak()

    def begin(self) -> None:
        """Notes what the libraries hold, before the first tensor is read."""
        self._peak.host_bytes_before = self._peak.host_bytes_before or _host_bytes()[0]

    def sample(self) -> build_pb2.BuildPeak:
        """Takes a sample and returns the peak so far."""
        anonymous, resident = _host_bytes()
        self._peak.host_bytes = max(self._peak.host_bytes, anonymous)
        self._peak.resident_bytes = max(self._peak.resident_bytes, resident)
        if self._device.type in ("cuda", "xpu"):
            held = getattr(torch, self._device.type).max_memory_reserved(self._device)
            self._peak.device_bytes = max(self._peak.device_bytes, held)
        return self._peak


def _host_bytes() -> tuple[int, int]:
    """(anonymous bytes, largest resident set); where the kernel does not tell, the resident set for both."""
    try:
        fields = dict(line.split(":", 1) for line in STATUS.read_text().splitlines() if ":" in line)
        return _kib(fields["RssAnon"]), _kib(fields["VmHWM"])
    except (OSError, KeyError):
        resident = psutil.Process(os.getpid()).memory_info().rss
        return resident, resident


def _kib(text: str) -> int:
    return int(text.split()[0]) * 1024
