"""The truth of a job's progress, whatever a worker says.

Knows nothing of workers or storage. Invariant: within one attempt the fraction never falls and stays within 0 to 1, and
completed never exceeds a known total.
"""

from __future__ import annotations

import math

from darkroom.v1 import generation_pb2

# Of a job that has to load first, the share of the bar that loading fills.
LOAD_SHARE = 0.5


class ProgressTruth:
    """One attempt's progress.

    Args:
        reached: fraction told before, by a gateway that drove the same attempt.
    """

    def __init__(self, reached: float = 0.0) -> None:
        self._reached = reached
        self._start = 0.0

    def of_load(self, progress: generation_pb2.Progress) -> generation_pb2.Progress:
        """Returns a load's progress as part of the job's."""
        told = self._tell(progress, LOAD_SHARE * _clamped(progress.fraction))
        self._start = LOAD_SHARE
        return told

    def of_run(self, progress: generation_pb2.Progress) -> generation_pb2.Progress:
        """Returns a run's progress as part of the job's."""
        return self._tell(progress, self._start + (1 - self._start) * _clamped(progress.fraction))

    def _tell(self, progress: generation_pb2.Progress, fraction: float) -> generation_pb2.Progress:
        told = generation_pb2.Progress()
        told.CopyFrom(progress)
        self._reached = max(self._reached, fraction)
        told.fraction = self._reached
        told.completed = max(0, progress.completed)
        if progress.total > 0:
            told.completed = min(told.completed, progress.total)
        return told


def _clamped(fraction: float) -> float:
    return min(1.0, max(0.0, fraction)) if math.isfinite(fraction) else 0.0
