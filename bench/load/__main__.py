"""Measures what is named, prints it, and saves it. See the package."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from bench.load import jobs, retained, submits, watches
from bench.machine import describe_machine

SUBJECTS: dict[str, Callable[[], Coroutine[Any, Any, dict[str, Any]]]] = {
    "submits": submits.measure,
    "jobs": jobs.measure,
    "scaling": jobs.measure_scaling,
    "watches": watches.measure,
    "retained": retained.measure,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("subjects", nargs="*", help=f"what to measure, all where absent: {', '.join(SUBJECTS)}")
    parser.add_argument("--save", type=Path, help="write the figures into this JSON, beside those of other subjects")
    options = parser.parse_args()
    if unknown := set(options.subjects) - SUBJECTS.keys():
        parser.error(f"unknown: {', '.join(sorted(unknown))}; known are {', '.join(SUBJECTS)}")
    for name in options.subjects or SUBJECTS:
        figures = {"machine": describe_machine(), **asyncio.run(SUBJECTS[name]())}
        print(name, json.dumps(figures, indent=2))
        if options.save:
            _save(options.save, name, figures)
    return 0


def _save(path: Path, name: str, figures: dict[str, Any]) -> None:
    saved = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**saved, name: figures}, indent=2) + "\n")


if __name__ == "__main__":
    sys.exit(main())
