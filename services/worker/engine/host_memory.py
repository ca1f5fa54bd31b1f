"""Memory of the host, or of the control group that this process lives in where that is narrower. No torch.

Invariant: reclaimable page cache counts as free; a download that we just wrote makes no machine look full.
"""

from __future__ import annotations

from pathlib import Path

import psutil  # type: ignore[import-untyped]

CGROUPS = Path("/sys/fs/cgroup")
# (limit, usage, statistics) under version 2 and version 1 of control groups.
FILES = (
    ("memory.max", "memory.current", "memory.stat"),
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat"),
)


def host_memory(cgroups: Path = CGROUPS) -> tuple[int, int]:
    """(total, free) in bytes. Without a limit the kernel writes "max", or a number beyond the host's memory."""
    host = psutil.virtual_memory()
    total, free = int(host.total), int(host.available)
    for limit_file, usage_file, statistics_file in FILES:
        limit, usage = _number(cgroups / limit_file), _number(cgroups / usage_file)
        if limit is not None and usage is not None and limit < total:
            held = max(usage - _reclaimable(cgroups / statistics_file), 0)
            total, free = limit, min(free, max(limit - held, 0))
    return total, free


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def _reclaimable(statistics: Path) -> int:
    try:
        fields = dict(line.split(None, 1) for line in statistics.read_text().splitlines())
        return int(fields.get("total_inactive_file") or fields.get("inactive_file") or 0)
    except (OSError, ValueError):
        return 0
