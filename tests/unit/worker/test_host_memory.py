"""Free memory where a control group sets the limit."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from services.worker.engine.host_memory import host_memory

GIB = 2**30


def group(folder: Path, version: int, limit: str, usage: int, cache: int) -> Path:
    names = ("memory.max", "memory.current") if version == 2 else ("memory.limit_in_bytes", "memory.usage_in_bytes")
    home = folder if version == 2 else folder / "memory"
    home.mkdir(exist_ok=True)
    (home / names[0]).write_text(limit)
    (home / names[1]).write_text(str(usage))
    key = "inactive_file" if version == 2 else "total_inactive_file"
    (home / "memory.stat").write_text(f"anon 1\n{key} {cache}\n")
    return folder


@pytest.mark.parametrize("version", [1, 2])
def test_a_narrower_limit_counts_and_page_cache_is_free(tmp_path: Path, version: int) -> None:
    # 2 GiB limit, 1.5 used, 1.25 of it page cache: 0.25 really held, 1.75 free.
    cgroups = group(tmp_path, version, str(2 * GIB), 3 * GIB // 2, 5 * GIB // 4)
    total, free = host_memory(cgroups)
    assert total == 2 * GIB
    assert 0 < free <= 7 * GIB // 4


@pytest.mark.parametrize("limit", ["max", str(2**62)])
def test_no_limit_leaves_the_host_as_it_is(tmp_path: Path, limit: str) -> None:
    assert host_memory(group(tmp_path, 2, limit, GIB, 0))[0] == psutil.virtual_memory().total


def test_no_control_groups_at_all_is_no_problem(tmp_path: Path) -> None:
    assert host_memory(tmp_path)[0] == psutil.virtual_memory().total
