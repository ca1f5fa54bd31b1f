"""The real stack over stand-ins, as a process of its own: `stand_in_stack.py DATA_DIR NUM_WORKERS`."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from services.stack.child import Service
from services.stack.record import hold_folder
from services.stack.report import ConsoleReporter
from services.stack.stack import Stack

STAND_IN = Path(__file__).with_name("stand_in.py")


def service(name: str) -> Service:
    variable = f"DARKROOM_{name.rpartition('-')[0].upper() or name.upper()}_LISTEN"
    return Service(name, (sys.executable, str(STAND_IN), name), variable, "127.0.0.1:0")


async def run(data_dir: Path, num_workers: int, lock: int) -> int:
    def make_gateway(planner: str, workers: Sequence[str]) -> Service:
        print("gateway gets", planner, *workers, flush=True)
        return service("gateway")

    reporter = ConsoleReporter(Console(width=100), data_dir)
    workers = [service(f"worker-{index}") for index in range(num_workers)]
    stack = Stack(
        service("planner"),
        workers,
        make_gateway,
        data_dir,
        reporter,
        grace_s=float(os.environ.get("STAND_IN_GRACE_S", "5")),
        start_s=float(os.environ.get("STAND_IN_START_S", "30")),
        lock=lock,
    )
    return await stack.run()


def main() -> int:
    data_dir = Path(sys.argv[1])
    with hold_folder(data_dir) as lock:
        return asyncio.run(run(data_dir, int(sys.argv[2]), lock))


if __name__ == "__main__":
    sys.exit(main())
