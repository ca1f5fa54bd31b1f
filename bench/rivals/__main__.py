"""Measures the three in turns and prints ratios. See the package."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from bench.load.asking import channels, in_flight, submissions, submitting
from bench.load.jobs import measure as measure_jobs
from bench.load.stage import ROOT, stage
from bench.machine import describe_machine
from bench.rivals import WARM_UP
from services.gateway.store.server import find_server

NUM_TASKS = 300
WIDTH = 16
ROUNDS = 3
START_S = 20.0
ASK_S = 300.0
# Two processes of theirs take tasks, as many as there are cores; two workers of ours.
NUM_WORKERS = 2
WORKERS = {
    "celery": ("celery", "-A", "bench.rivals.celery_tasks", "worker", "--concurrency", str(NUM_WORKERS), "-l", "ERROR"),
    "taskiq": ("taskiq", "worker", "bench.rivals.taskiq_tasks:broker", "--workers", str(NUM_WORKERS)),
}
SUBMITS, WHOLE = "submits a second", "whole tasks a second"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--save", type=Path, help="write the figures here as JSON")
    options = parser.parse_args()
    rounds: dict[str, list[dict[str, float]]] = {"darkroom": [], **{name: [] for name in WORKERS}}
    for _ in range(ROUNDS):
        rounds["darkroom"].append(asyncio.run(_darkroom()))
        for name in WORKERS:
            rounds[name].append(_rival(name))
    medians = {
        name: {figure: round(statistics.median(row[figure] for row in rows), 1) for figure in (SUBMITS, WHOLE)}
        for name, rows in rounds.items()
    }
    ratios = {
        f"darkroom over {name}": {
            figure: round(medians["darkroom"][figure] / medians[name][figure], 2) for figure in (SUBMITS, WHOLE)
        }
        for name in WORKERS
    }
    print(json.dumps({"medians": medians, "ratios": ratios}, indent=2))
    if options.save:
        figures = {
            "machine": describe_machine(),
            "tasks": NUM_TASKS,
            "medians": medians,
            "ratios": ratios,
            "rounds": rounds,
        }
        options.save.write_text(json.dumps(figures, indent=2) + "\n")
    return 0


async def _darkroom() -> dict[str, float]:
    with stage() as running:
        async with channels(running.address) as opened:
            await in_flight(submitting(opened, submissions(WARM_UP)), WARM_UP, WIDTH)
            _, seconds = await in_flight(submitting(opened, submissions(NUM_TASKS)), NUM_TASKS, WIDTH)
    whole = await measure_jobs(NUM_WORKERS, NUM_TASKS)
    return {SUBMITS: round(NUM_TASKS / seconds, 1), WHOLE: whole["whole jobs a second"]}


def _rival(name: str) -> dict[str, float]:
    with _redis() as url:
        submits = NUM_TASKS / _ask(name, url, "submit")
    with _redis() as url, _worker(name, url):
        whole = NUM_TASKS / _ask(name, url, "whole")
    return {SUBMITS: round(submits, 1), WHOLE: round(whole, 1)}


def _ask(name: str, url: str, what: str) -> float:
    command = [sys.executable, "-m", f"bench.rivals.{name}_asking", str(NUM_TASKS), str(WIDTH), what]
    asked = subprocess.run(command, cwd=ROOT, env=_environment(url), stdout=subprocess.PIPE, timeout=ASK_S, check=True)
    return float(asked.stdout.splitlines()[-1])


@contextlib.contextmanager
def _worker(name: str, url: str) -> Iterator[None]:
    with _running([str(Path(sys.executable).with_name(WORKERS[name][0])), *WORKERS[name][1:]], _environment(url)):
        # The warm-up waits for the first results, so that a worker which still starts is not measured.
        yield


@contextlib.contextmanager
def _redis() -> Iterator[str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory(prefix="rivals-") as folder:
        command = [find_server(), "--port", str(port), "--dir", folder, "--save", ""]
        command += ["--appendonly", "yes", "--appendfsync", "always"]
        with _running(command, os.environ):
            until = time.monotonic() + START_S
            while time.monotonic() < until:
                with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                    break
                time.sleep(0.05)
            yield f"redis://127.0.0.1:{port}/0"


@contextlib.contextmanager
def _running(command: Sequence[str], environment: Mapping[str, str]) -> Iterator[None]:
    quiet = subprocess.DEVNULL
    process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=quiet, stderr=quiet)
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _environment(url: str) -> dict[str, str]:
    return {**os.environ, "DARKROOM_BENCH_REDIS": url, "PYTHONPATH": str(ROOT)}


if __name__ == "__main__":
    sys.exit(main())
