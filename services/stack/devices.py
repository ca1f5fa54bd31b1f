"""Which devices this machine offers, found without torch.

Knows nothing of what they can do: a worker probes its own. Invariant: never raises; a machine that tells nothing has
one device that the worker finds by itself.
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
from pathlib import Path

NVIDIA_PROC = Path("/proc/driver/nvidia/gpus")
# nvidia-smi waits for a driver that is being set up.
NVIDIA_SMI_S = 10.0


def choose_devices(wanted: str, num_workers: int) -> list[str]:
    """Returns the device of each worker.

    Args:
        wanted: "auto", or a device that every worker gets.
        num_workers: 0 means one for each visible device.
    """
    if wanted != "auto":
        return [wanted] * max(num_workers, 1)
    num_gpus = count_nvidia_devices() if torch_has_cuda() else 0
    found = [f"cuda:{index}" for index in range(num_gpus)] or ["auto"]
    if not num_workers:
        return found
    return [found[index % len(found)] for index in range(num_workers)]


def count_nvidia_devices() -> int:
    """Returns how many GPUs a CUDA program started here would see."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        # CUDA stops at the first entry that is no device; -1 is the customary one.
        named = visible.split(",") if visible.strip() else []
        return next((index for index, name in enumerate(named) if name.strip().startswith("-")), len(named))
    return _count_by_nvidia_smi() or (len(list(NVIDIA_PROC.iterdir())) if NVIDIA_PROC.is_dir() else 0)


def torch_has_cuda() -> bool:
    """Reads whether the installed torch is built for CUDA, without importing it; True where that can't be told."""
    found = importlib.util.find_spec("torch")
    if found is None or found.origin is None:
        return True
    version_file = Path(found.origin).with_name("version.py")
    try:
        return not re.search(r"^cuda\b[^=\n]*= None$", version_file.read_text(), re.MULTILINE)
    except OSError:
        return True


def _count_by_nvidia_smi() -> int:
    try:
        listing = subprocess.run(
            ["nvidia-smi", "--list-gpus"], capture_output=True, text=True, timeout=NVIDIA_SMI_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return 0
    return sum(line.startswith("GPU ") for line in listing.stdout.splitlines())
