"""The work folder of a training run: where each stage finds the files of the stage before.

Does not know what is in the files. Invariant: one run, one folder; nothing is written outside it
except by the stages that make the model folder (export, adapter, reference_set, evaluate, grid).
"""

from __future__ import annotations

import argparse
from pathlib import Path

MODEL_FOLDER = Path(__file__).resolve().parent.parent
DEFAULT_WORK = Path(__file__).resolve().parent / "work"


def add_work_argument(parser: argparse.ArgumentParser) -> None:
    """Add ``--work``, the same in every stage."""
    parser.add_argument(
        "--work", type=Path, default=DEFAULT_WORK,
        help="folder of this run's files (default: %(default)s, ignored by git)",
    )  # fmt: skip


def add_model_argument(parser: argparse.ArgumentParser) -> None:
    """Add ``--model``, the pipeline folder that a stage reads or writes."""
    parser.add_argument(
        "--model", type=Path, default=MODEL_FOLDER,
        help="pipeline folder (default: %(default)s)",
    )  # fmt: skip
