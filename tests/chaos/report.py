"""A trial for people and for later: a table in the terminal, and chaos-SEED.md, .json and .png.

Knows nothing of how the verdict came about. Invariant: what is written names machine, versions and command.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.machine import describe_machine
from tests.chaos.timeline import draw_timeline
from tests.chaos.trial import Trial, Verdict

RULES = (
    "lost",
    "duplicated",
    "double-written",
    "stuck",
    "wrong end",
    "wrong time",
    "wrong tenant",
    "wrong picture",
    "out of order",
    "gap",
    "recomputed",
    "orphaned",
    "refused",
    "bad exit",
)
SHOWN_FINDINGS = 40


def print_report(console: Console, trial: Trial, verdict: Verdict) -> None:
    """Prints what was found, and what was done."""
    for title, rows in (
        ("findings", _findings(verdict)),
        ("jobs", _figures(verdict)),
        ("faults", {name: str(count) for name, count in verdict.faults.items()}),
    ):
        table = Table(title=title, show_header=False, title_justify="left")
        for name, value in rows.items():
            table.add_row(name, value)
        console.print(table)
    for finding in verdict.findings[:SHOWN_FINDINGS]:
        console.print(str(finding), style="red", highlight=False)


def write_report(target: Path, trial: Trial, verdict: Verdict, command: str, began_at: str) -> None:
    """Writes the three files beside each other."""
    target.parent.mkdir(parents=True, exist_ok=True)
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    machine = {**describe_machine(), "command": command, "began": began_at, "load average at the end": load}
    for unused in ("torch", "diffusers", "transformers"):
        machine.pop(unused, None)
    record = {
        "machine": machine,
        "trial": _trial(trial),
        "figures": verdict.figures,
        "faults": verdict.faults,
        "findings": [str(finding) for finding in verdict.findings],
    }
    target.with_suffix(".json").write_text(json.dumps(record, indent=2) + "\n")
    draw_timeline(verdict.history, target.with_suffix(".png"))
    target.with_suffix(".md").write_text(_markdown(target.name, trial, verdict, machine))


def _findings(verdict: Verdict) -> dict[str, str]:
    counts = Counter(finding.rule for finding in verdict.findings)
    return {rule: str(counts[rule]) for rule in RULES}


def _figures(verdict: Verdict) -> dict[str, str]:
    return {
        name.replace("_", " "): ", ".join(f"{key} {count}" for key, count in value.items())
        if isinstance(value, dict)
        else str(value)
        for name, value in verdict.figures.items()
    }


def _trial(trial: Trial) -> dict[str, Any]:
    size = trial.size
    return {
        "seed": trial.seed,
        "minutes": trial.minutes,
        "jobs": trial.num_jobs,
        "hands": trial.num_hands,
        "gateways": size.num_gateways,
        "workers": size.num_workers,
        "lease_s": size.lease_s,
        "seconds_between_faults": trial.period_s,
        "bound_s": trial.bound_s,
    }


def _markdown(name: str, trial: Trial, verdict: Verdict, machine: dict[str, str]) -> str:
    size = trial.size
    opening = (
        f"# Chaos, seed {trial.seed}\n\n"
        f"{verdict.figures['jobs']} jobs on {size.num_gateways} gateways and {size.num_workers} workers with the "
        f"rehearsal engine, for {verdict.figures['seconds']:.0f} s; a fault every {trial.period_s:g} s, "
        f"{sum(verdict.faults.values())} in all. Half of the jobs ended within "
        f"{verdict.figures.get('seconds_to_end_p50')} s, the slowest within "
        f"{verdict.figures.get('seconds_to_end_max')} s; {trial.bound_s:g} s are the bound. "
        + (f"**{len(verdict.findings)} findings.**" if verdict.findings else "**No findings.**")
    )
    findings = "".join(f"- {finding}\n" for finding in verdict.findings[:SHOWN_FINDINGS])
    return (
        "\n\n".join(
            [
                opening,
                f"![faults, jobs in flight, jobs that ended]({name}.png)",
                "## What the checker found\n\n"
                + _rows("rule", "findings", _findings(verdict))
                + f"\n{findings}".rstrip(),
                "## The jobs\n\n" + _rows("figure", "value", _figures(verdict)),
                "## The faults\n\n"
                + _rows("kind", "times", {key: str(value) for key, value in verdict.faults.items()}),
                "## The machine\n\n" + _rows("what", "value", machine),
            ]
        )
        + "\n"
    )


def _rows(first: str, second: str, rows: dict[str, str]) -> str:
    return f"| {first} | {second} |\n|---|---|\n" + "\n".join(f"| {name} | {value} |" for name, value in rows.items())
