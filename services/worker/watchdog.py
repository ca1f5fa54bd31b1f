"""Tells a slow engine from a hung one: by silence within a phase, not by wall time.

Budgets come with the plan. Knows nothing of processes. Invariant: only progress moves the clock.
"""

from __future__ import annotations

from collections.abc import Callable

from darkroom.v1 import generation_pb2, plan_pb2
from darkroom.v1.generation_pb2 import (
    PHASE_ASSEMBLING,
    PHASE_COMPILING,
    PHASE_DECODING,
    PHASE_DENOISING,
    PHASE_DOWNLOADING,
    PHASE_ENCODING,
)

# Budgets by phase where a plan says nothing: a shard of 71 s and a step of 34 s were seen on machines under pressure,
# and are no hangs; a cold regional compile took about 60 s.
DEFAULTS_S: dict[int, float] = {
    PHASE_DOWNLOADING: 120.0,
    PHASE_ASSEMBLING: 180.0,
    PHASE_COMPILING: 600.0,
    PHASE_ENCODING: 120.0,
    PHASE_DENOISING: 300.0,
    PHASE_DECODING: 180.0,
}
FIELDS: dict[int, str] = {
    PHASE_DOWNLOADING: "download",
    PHASE_ASSEMBLING: "assemble",
    PHASE_COMPILING: "compile",
    PHASE_ENCODING: "encode",
    PHASE_DENOISING: "denoise",
    PHASE_DECODING: "decode",
}


def idle_budget_s(budgets: plan_pb2.IdleBudgets, phase: int) -> float:
    """Longest silence of `phase` in seconds: the plan's, or the default where it says nothing."""
    field = FIELDS.get(phase)
    if field is None or not budgets.HasField(field):  # type: ignore[arg-type]
        return DEFAULTS_S.get(phase, max(DEFAULTS_S.values()))
    seconds: float = getattr(budgets, field).ToTimedelta().total_seconds()
    return seconds if seconds > 0 else DEFAULTS_S[phase]


class ProgressWatch:
    """The clock of one command.

    Args:
        budgets: of the plan in force.
        phase: what the command begins with.
        now: a monotonic clock in seconds.
        at_once: pictures that are made together: a step of theirs may take as many times as long.
    """

    def __init__(self, budgets: plan_pb2.IdleBudgets, phase: int, now: Callable[[], float], at_once: int = 1) -> None:
        self.budgets = budgets
        self._at_once = at_once
        self.phase = phase
        self._now = now
        self._progressed_at = now()

    def saw(self, progress: generation_pb2.Progress | None) -> None:
        """The engine went on; `progress` tells with what, None that the phase stays."""
        self._progressed_at = self._now()
        if progress is not None and progress.phase:
            self.phase = progress.phase

    @property
    def idle_s(self) -> float:
        """Seconds since the last progress."""
        return self._now() - self._progressed_at

    @property
    def budget_s(self) -> float:
        """Longest silence of the present phase."""
        return idle_budget_s(self.budgets, self.phase) * self._at_once

    @property
    def remaining_s(self) -> float:
        """Seconds until the engine counts as hung; negative when it does."""
        return self.budget_s - self.idle_s

    @property
    def phase_name(self) -> str:
        """For people: "denoising"."""
        name: str = generation_pb2.Phase.Name(self.phase)  # type: ignore[arg-type]
        return name.removeprefix("PHASE_").lower()
