"""What a failure means for the job: the one table of retryable and permanent.

Knows nothing of how the failure came about. Invariant: only an engine that died while its supervisor lived, and
while it worked on this job alone, is held against the job.
"""

from __future__ import annotations

import enum
from typing import Any

from darkroom.rpc.errors import (
    CancelledError,
    DarkroomError,
    DrainingError,
    EngineDiedError,
    EngineHungError,
    InternalError,
    NoPlannerError,
    OutOfMemoryError,
    PoisonError,
    StaleTokenError,
    WorkerHeldError,
    WorkerLostError,
)


class Verdict(enum.Enum):
    """What becomes of a job after an attempt."""

    FAIL = "permanent: the same request would fail again"
    RELEASE = "back to the queue, nothing charged"
    LOST = "back to the queue, charged to a large bound"
    DEATH = "back to the queue, charged to the job itself"
    SUSPECT = "back to the queue, to run alone: it or another of its batch ended the engine"
    ABANDON = "somebody else has the job"


TABLE: tuple[tuple[type[DarkroomError], Verdict], ...] = (
    (StaleTokenError, Verdict.ABANDON),
    (EngineDiedError, Verdict.DEATH),
    (EngineHungError, Verdict.DEATH),
    (DrainingError, Verdict.RELEASE),
    (WorkerHeldError, Verdict.RELEASE),
    (NoPlannerError, Verdict.RELEASE),
    (WorkerLostError, Verdict.LOST),
    (OutOfMemoryError, Verdict.FAIL),
    (InternalError, Verdict.FAIL),
)


def judge(error: DarkroomError, *, is_cancel_wanted: bool) -> Verdict:
    """Returns what `error` means; a cancellation that nobody asked for is a worker's fault."""
    if isinstance(error, CancelledError):
        return Verdict.FAIL if is_cancel_wanted else Verdict.LOST
    for kind, verdict in TABLE:
        if isinstance(error, kind):
            # The worker names how many it was making together.
            is_shared = verdict is Verdict.DEATH and "suspects" in error.facts
            return Verdict.SUSPECT if is_shared else verdict
    return Verdict.LOST if error.is_retryable else Verdict.FAIL


def final_error(error: DarkroomError, verdict: Verdict, bound: int) -> DarkroomError:
    """Returns what a job fails with when `verdict` was reached `bound` times, the last time with `error`."""
    evidence: dict[str, Any] = {**error.facts, "last_reason": error.reason, "last_message": error.message}
    if verdict is Verdict.DEATH:
        text = f"the engine process ended {bound} times while it worked on this job; it is not tried again"
        return PoisonError(text, deaths=bound, **evidence)
    if verdict is Verdict.LOST:
        text = f"{bound} workers were lost while they worked on this job; submit it again when workers are stable"
        return WorkerLostError(text, lost_workers=bound, **evidence)
    return error
