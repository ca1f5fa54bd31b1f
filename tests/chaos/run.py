"""`python -m tests.chaos.run`: a long trial with a report; exits 1 if the checker found anything.

examples:
  python -m tests.chaos.run --seed 7 --minutes 15 --gateways 3 --workers 8 --jobs 5000
      writes bench/results/chaos-7.md, .png and .json
  python -m tests.chaos.run --seed 7 --minutes 15 --schedule
      prints the faults of that seed, and runs nothing
  python -m tests.chaos.run --seed 7 --minutes 2 --jobs 400 --only "kill gateway" --only "stop gateway"
      the same faults, but for other kinds
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shlex
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console

from tests.chaos.cluster import Size
from tests.chaos.process import ROOT
from tests.chaos.report import print_report, write_report
from tests.chaos.schedule import WEIGHTS
from tests.chaos.trial import Trial, run_trial


def main() -> None:
    """Runs, prints and writes."""
    options = _parser().parse_args()
    seed = options.seed if options.seed is not None else int.from_bytes(os.urandom(4), "big")
    trial = Trial(
        seed,
        options.minutes,
        options.jobs,
        options.hands,
        options.bound,
        options.period,
        Size(options.gateways, options.workers, options.lease),
        tuple(options.only),
    )
    console = Console()
    if options.schedule:
        for deed in trial.schedule():
            print(deed.describe())
        return
    console.print(f"seed [bold]{seed}[/]: the same seed brings the same jobs and the same faults", highlight=False)
    command = shlex.join(["python", "-m", "tests.chaos.run", "--seed", str(seed), *_replayed(sys.argv[1:])])
    folder = Path(options.keep or tempfile.mkdtemp(prefix="darkroom-chaos-"))
    console.print(f"logs, history and data: {folder}", highlight=False)
    began_at = time.strftime("%Y-%m-%d %H:%M")
    verdict = asyncio.run(run_trial(trial, folder, may_fetch=True))
    print_report(console, trial, verdict)
    target = Path(options.out) / f"chaos-{seed}"
    write_report(target, trial, verdict, command, began_at)
    console.print(f"written: {target}.md, .png and .json", highlight=False)
    sys.exit(1 if verdict.findings else 0)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "python -m tests.chaos.run", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, help="of jobs and faults; drawn and printed where it is not given")
    parser.add_argument("--minutes", type=float, default=15, help="how long jobs are asked for and faults come")
    parser.add_argument("--jobs", type=int, default=5000, help="most jobs, spread over that time")
    parser.add_argument("--gateways", type=int, default=3)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--hands", type=int, default=32, help="jobs that clients see through at once")
    parser.add_argument("--lease", type=float, default=3.0, help="seconds of a job's lease; faults are measured in it")
    parser.add_argument("--period", type=float, default=1.0, help="seconds between faults; 0 for none")
    parser.add_argument("--bound", type=float, default=120.0, help="seconds that one job may take")
    parser.add_argument("--only", action="append", default=[], choices=list(WEIGHTS), help="kinds of faults")
    parser.add_argument("--schedule", action="store_true", help="print the faults and run nothing")
    parser.add_argument("--keep", help="folder for logs, history and data; a temporary one where it is not given")
    parser.add_argument("--out", default=str(ROOT / "bench" / "results"), help="folder of the report")
    return parser


def _replayed(arguments: list[str]) -> list[str]:
    """What of a command makes the run: not the seed, which is told apart, and not where things are kept."""
    kept, skip = [], False
    for argument in arguments:
        name, has_value, _ = argument.partition("=")
        if skip:
            skip = False
        elif name in ("--seed", "--keep", "--out"):
            skip = not has_value
        else:
            kept.append(argument)
    return kept


if __name__ == "__main__":
    main()
