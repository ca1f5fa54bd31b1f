"""What a plan costs: one, this model on all known devices, and the process that answers.

    python -m bench.planner
    python -m bench.planner --plans 5000 --save bench/results/planner.json

Nothing is memoised between plans: each is made anew from a request that differs from the one before. Time is this
thread's processor time where one plan is meant, so that a busy machine does not blur it, and wall time for the process.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.machine import describe_machine
from bench.running import ROOT
from darkroom.knowledge import Catalogue, load_catalogue
from darkroom.rpc.errors import PlanRefusedError
from darkroom.v1 import plan_pb2, planner_service_pb2
from services.planner.planning import plan

# What the figures are held against; "plans a second" is a least, the others are mosts.
BARS = {
    "plan p50 ms": 2.0,
    "plan p99 ms": 2.0,
    "plans a second": 2000.0,
    "one model on all devices ms": 50.0,
    "start to first answer s": 1.0,
    "resident MB": 80.0,
}
START_PROGRAM = """
import sys
from darkroom.knowledge import load_catalogue
from darkroom.v1 import planner_service_pb2
from services.planner.planning import plan
catalogue = load_catalogue()
plan(planner_service_pb2.PlanRequest(model="flux.1-dev", device=catalogue.device("h100")), catalogue)
status = open("/proc/self/status").read()
print(int(status.partition("VmRSS:")[2].split()[0]) * 1024 / 1e6, *(set(sys.modules) & {"torch", "numpy"}))
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plans", type=int, default=3000, help="plans to time one by one")
    parser.add_argument("--save", type=Path, help="write the figures here as JSON")
    options = parser.parse_args()
    catalogue = load_catalogue()
    figures = {**time_plans(catalogue, options.plans), **time_all_devices(catalogue), **time_start()}
    report(figures)
    if options.save:
        options.save.write_text(json.dumps({"machine": describe_machine(), "figures": figures}, indent=2) + "\n")
    return 0


def requests(catalogue: Catalogue) -> Iterator[planner_service_pb2.PlanRequest]:
    """Yields every model on every described device, over and over, each time with other memory taken."""
    for taken in itertools.count():
        for variant in catalogue:
            for name in catalogue.devices:
                device = catalogue.device(name)
                device.memory.foreign_bytes = (taken * 7919 + 1) << 20
                device.memory.foreign_bytes %= device.memory.total_bytes
                yield planner_service_pb2.PlanRequest(model=variant.name, device=device)


def time_plans(catalogue: Catalogue, count: int) -> dict[str, float]:
    """Returns percentiles and rate of single plans, fallbacks and reasons included."""
    taken = []
    for request in itertools.islice(requests(catalogue), count):
        begin = time.thread_time_ns()
        make(request, catalogue)
        taken.append((time.thread_time_ns() - begin) / 1e6)
    taken.sort()
    return {
        "plan p50 ms": taken[len(taken) // 2],
        "plan p99 ms": taken[int(len(taken) * 0.99)],
        "plans a second": 1000 * len(taken) / sum(taken),
    }


def make(request: planner_service_pb2.PlanRequest, catalogue: Catalogue) -> planner_service_pb2.PlanResponse | None:
    """Plans; a refusal counts as an answer."""
    try:
        return plan(request, catalogue)
    except PlanRefusedError:
        return None


def time_all_devices(catalogue: Catalogue) -> dict[str, float]:
    """Returns what it takes to plan one model on every described device."""
    begin = time.thread_time_ns()
    for name in catalogue.devices:
        request = planner_service_pb2.PlanRequest(
            model="flux.1-dev", device=catalogue.device(name), preferences=plan_pb2.PlanPreferences()
        )
        make(request, catalogue)
    return {"one model on all devices ms": (time.thread_time_ns() - begin) / 1e6}


def time_start() -> dict[str, float]:
    """Returns how long a fresh process takes to its first plan, and what it then holds."""
    begin = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", START_PROGRAM],
        cwd=ROOT,
        env=dict(os.environ),
        check=True,
        capture_output=True,
        text=True,
    )
    resident, *heavy = done.stdout.split()
    if heavy:
        raise RuntimeError(f"the planner imports {', '.join(heavy)}")
    return {"start to first answer s": time.perf_counter() - begin, "resident MB": float(resident)}


def report(figures: dict[str, float]) -> None:
    """Prints the figures beside what they are held against."""
    table = Table("figure", "measured", "bar")
    for name, value in figures.items():
        is_met = value >= BARS[name] if name == "plans a second" else value <= BARS[name]
        table.add_row(name, f"{value:,.2f}", f"{BARS[name]:,g}", style="" if is_met else "red")
    Console().print(table)


if __name__ == "__main__":
    sys.exit(main())
