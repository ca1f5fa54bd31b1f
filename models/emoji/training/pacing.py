"""How far a training run is, and what the learning rate is there.

A run has a budget of steps or of seconds (whichever ends first), because rented GPUs are paid by
time. Does not know models. Invariant: progress never goes back, also over a restart, because the
seconds already trained travel in the checkpoint.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass, field

import torch

from models.emoji.training import ranks

LOOK_STEPS = 20
"""Steps between two looks at the clock. A look makes several ranks wait for each other."""


def add_budget_arguments(parser: argparse.ArgumentParser, steps: int, seconds: float) -> None:
    """Add ``--steps`` and ``--seconds`` with the stage's defaults."""
    parser.add_argument("--steps", type=int, default=steps, help="most steps (%(default)s)")
    parser.add_argument(
        "--seconds", type=float, default=seconds,
        help="most seconds of training, compilation not counted (%(default)s); "
        "the learning rate follows whichever of both is nearer its end",
    )  # fmt: skip


@dataclass
class Pace:
    """Position of a run inside its budget."""

    max_steps: int
    max_seconds: float
    step: int = 0
    trained_s: float = 0.0
    """Seconds trained before this process started its clock."""
    share: float = 0.0
    """Progress at the last look, equal on all ranks."""
    _saved_s: float = 0.0
    _started_at: float | None = field(default=None, repr=False)

    def restore(self, step: int, trained_s: float) -> None:
        """Continue where a checkpoint was written."""
        self.step, self.trained_s, self._saved_s = step, trained_s, trained_s

    def start_clock(self) -> None:
        """Begin counting seconds; call after the first (compiling) step."""
        self._started_at = time.monotonic()

    @property
    def is_clock_running(self) -> bool:
        """Whether `start_clock` was called in this process."""
        return self._started_at is not None

    def advance(self) -> None:
        """Count one step."""
        self.step += 1

    def is_running(self, device: torch.device) -> bool:
        """Whether the budget still has room; looks at the clock every LOOK_STEPS steps."""
        if self.step % LOOK_STEPS == 0 or self.share == 0.0:
            self.share = ranks.agree(self.progress(), device)
        self.share = max(self.share, self.step / self.max_steps)
        return self.share < 1

    def is_checkpoint_due(self, every_s: float, device: torch.device) -> bool:
        """Whether `every_s` seconds have passed since the last checkpoint (asked, not counted)."""
        if self.step % LOOK_STEPS:
            return False
        now_s = ranks.agree(self.elapsed_s(), device)
        if now_s - self._saved_s <= every_s:
            return False
        self._saved_s = now_s
        return True

    def elapsed_s(self) -> float:
        """Seconds trained so far, over all processes of this run."""
        running = 0.0 if self._started_at is None else time.monotonic() - self._started_at
        return self.trained_s + running

    def progress(self) -> float:
        """0 at the start, 1 when the budget is spent."""
        return max(self.step / self.max_steps, self.elapsed_s() / self.max_seconds)


def trapezoid(progress: float, warmup: float, decay: float, floor: float = 0.0) -> float:
    """Learning-rate factor: linear up over `warmup`, 1, linear down over the last `decay`.

    All arguments are shares of the run; `floor` is the factor at the end.
    """
    if progress < warmup:
        return max(progress / warmup, 1e-3)
    if progress > 1 - decay:
        return floor + (1 - floor) * max(0.0, (1 - progress) / decay)
    return 1.0
