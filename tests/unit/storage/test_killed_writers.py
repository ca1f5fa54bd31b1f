"""Writers that are killed at any moment leave the old file or none, never a piece."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path

NUM_RUNS = 70


def test_a_writer_killed_at_any_moment_leaves_the_old_file_or_the_whole_new_one(tmp_path: Path) -> None:
    seed = random.randrange(10**6)
    command = [sys.executable, "-m", "tests.unit.storage.killed_writers", str(tmp_path), str(NUM_RUNS), str(seed)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=100)
    for way, found in json.loads(done.stdout).items():
        assert found.get("torn", 0) == 0, (way, seed, found)
        assert found.get("old", 0) + found.get("new", 0) == NUM_RUNS
        # The moments were spread: some writers had not begun or were half through, some had ended.
        assert found.get("old", 0) >= 5, (way, seed, found)
        assert found.get("new", 0) >= 5, (way, seed, found)
        assert found["drafts"] >= 1, (way, seed, found)
