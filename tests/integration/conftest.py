"""One real stack for all integration tests: planner, worker, gateway and Redis as they are deployed on one machine."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from darkroom.client import Client

ROOT = Path(__file__).resolve().parents[2]
START_S = 120.0
STOP_S = 60.0


@dataclass(frozen=True)
class RunningStack:
    """A stack as its users see it."""

    process: subprocess.Popen[bytes]
    data_dir: Path

    def record(self) -> dict[str, Any]:
        """What stack.json tells now."""
        return dict(json.loads((self.data_dir / "stack.json").read_text()))

    @property
    def address(self) -> str:
        """Of the gateway."""
        return str(self.record()["gateway"]["address"])


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningStack]:
    """Runs for the whole session, on the processor, in a folder with a space in its name."""
    folder = tmp_path_factory.mktemp("the stack")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("DARKROOM_")}
    options = ("--listen", "127.0.0.1:0", "--device", "cpu", "--data-dir", str(folder / "data"))
    options += ("--exit-with-parent", str(os.getpid()))
    with open(folder / "output", "wb") as output:
        process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "services",
                "--listen",
                "127.0.0.1:0",
                "--device",
                "cpu",
                "--data-dir",
                str(folder / "data"),
                "--exit-with-parent",
                str(os.getpid()),
            ],
            cwd=ROOT,
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    running = RunningStack(process, folder / "data")
    until = time.monotonic() + START_S
    while not (running.data_dir / "stack.json").exists():
        assert process.poll() is None, (folder / "output").read_text()
        assert time.monotonic() < until, (folder / "output").read_text()
        time.sleep(0.05)
    yield running
    process.send_signal(signal.SIGTERM)
    assert process.wait(STOP_S) == 0, (folder / "output").read_text()


@pytest.fixture(scope="session")
def client(stack: RunningStack) -> Iterator[Client]:
    with Client(stack.address) as opened:
        yield opened
