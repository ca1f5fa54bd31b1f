"""Runs a whole stack for the length of a measurement.

Knows nothing of what is measured. Invariant: the stack is gone when the block ends.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
START_S = 120.0


@contextlib.contextmanager
def running_stack(environment: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    """Yields what stack.json tells: addresses and process ids of gateway, planner and workers.

    Raises:
        RuntimeError: the stack ended or was not up in time; the text is what it printed.
    """
    with tempfile.TemporaryDirectory(prefix="darkroom-bench-") as data_dir:
        command = [sys.executable, "-m", "services", "--listen", "127.0.0.1:0", "--data-dir", data_dir]
        printed = Path(data_dir) / "printed"
        with printed.open("w") as output:
            process = subprocess.Popen(
                command, cwd=ROOT, env={**os.environ, **environment}, stdout=output, stderr=output
            )
        try:
            yield _wait_for_record(process, Path(data_dir) / "stack.json", printed)
        finally:
            process.terminate()
            process.wait(timeout=60)


def _wait_for_record(process: subprocess.Popen[bytes], record: Path, printed: Path) -> dict[str, Any]:
    until = time.monotonic() + START_S
    while time.monotonic() < until and process.poll() is None:
        if record.exists():
            told: dict[str, Any] = json.loads(record.read_text())
            return told
        time.sleep(0.05)
    raise RuntimeError(f"the stack did not start:\n{printed.read_text()}")
