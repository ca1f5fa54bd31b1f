"""The processes of a measurement: gateway with its Redis, planner, workers; and what time of the processor each took.

Knows nothing of what is measured. Invariant: nothing that it started is left when the block ends.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil  # type: ignore[import-untyped]

ROOT = Path(__file__).resolve().parents[2]
START_S = 60.0
STOP_S = 30.0
# Bounds that no measurement meets: back-pressure is measured by tests.
QUEUE = {"DARKROOM_GATEWAY_MAX_QUEUED": "10000000", "DARKROOM_GATEWAY_MAX_QUEUED_PER_TENANT": "10000000"}


@dataclass(frozen=True)
class Stage:
    """What runs."""

    address: str
    data_dir: Path
    gateway: psutil.Process
    workers: psutil.Process | None

    @property
    def redis(self) -> psutil.Process:
        """The gateway's own server."""
        return next(child for child in self.gateway.children() if "valkey" in child.name() or "redis" in child.name())

    @property
    def redis_url(self) -> str:
        """For redis-py."""
        return f"unix://{self.data_dir / 'redis' / 'redis.sock'}"

    def cpu_s(self) -> dict[str, float]:
        """Seconds of the processor that each took so far; "load" is this process."""
        found = {"gateway": self.gateway, "redis": self.redis, "load": psutil.Process()}
        if self.workers is not None:
            found["workers"] = self.workers
        return {name: sum(process.cpu_times()[:2]) for name, process in found.items()}


@contextlib.contextmanager
def stage(num_workers: int = 0, step_s: float = 0.0, environment: Mapping[str, str] = {}) -> Iterator[Stage]:
    """Starts a gateway with `num_workers` workers; 0: none answers, and jobs wait."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="darkroom-load-")))
        planner, _ = stack.enter_context(_service("planner", folder, {"DARKROOM_PLANNER_LISTEN": "127.0.0.1:0"}))
        workers, process = "127.0.0.1:1", None
        if num_workers:
            workers, process = stack.enter_context(_workers(num_workers, step_s, folder))
        settings = {
            "DARKROOM_GATEWAY_LISTEN": "127.0.0.1:0",
            "DARKROOM_GATEWAY_PLANNER": planner,
            "DARKROOM_GATEWAY_WORKERS": workers,
            "DARKROOM_DATA_DIR": str(folder),
            **QUEUE,
            **environment,
        }
        address, gateway = stack.enter_context(_service("gateway", folder, settings))
        yield Stage(address, folder, gateway, process)


def shares(before: Mapping[str, float], after: Mapping[str, float], seconds: float) -> dict[str, float]:
    """Returns how much of one core each took, 1.0 for all of it."""
    return {name: round((after[name] - before[name]) / seconds, 3) for name in before}


@contextlib.contextmanager
def _service(name: str, folder: Path, environment: Mapping[str, str]) -> Iterator[tuple[str, psutil.Process]]:
    log = folder / f"{name}.log"
    with _running([sys.executable, "-m", f"services.{name}"], environment, log) as process:
        yield (
            _await(log, process, '"serving"', lambda line: str(json.loads(line)["address"])),
            psutil.Process(process.pid),
        )


@contextlib.contextmanager
def _workers(count: int, step_s: float, folder: Path) -> Iterator[tuple[str, psutil.Process]]:
    log = folder / "workers.log"
    with _running([sys.executable, "-m", "bench.load.workers", str(count), str(step_s)], {}, log) as process:
        yield _await(log, process, "127.0.0.1:", str.strip), psutil.Process(process.pid)


@contextlib.contextmanager
def _running(command: Sequence[str], environment: Mapping[str, str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as output:
        process = subprocess.Popen(command, cwd=ROOT, env={**os.environ, **environment}, stdout=output, stderr=output)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _await(log: Path, process: subprocess.Popen[bytes], mark: str, read: object) -> str:
    until = time.monotonic() + START_S
    while time.monotonic() < until and process.poll() is None:
        line = next((line for line in log.read_text().splitlines() if mark in line), None)
        if line is not None:
            return str(read(line))  # type: ignore[operator]
        time.sleep(0.05)
    raise RuntimeError(f"{log.stem} did not start:\n{log.read_text()[-2000:]}")
