"""The words that jobs are spoken of in: ids, bounds, wishes, setbacks, and the errors that the store ends jobs with.

Knows nothing of Redis. Invariant: only what `check_job_id` lets through becomes part of a key or a path.
"""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass

from darkroom.rpc.errors import CancelledError, DeadlineError, UnknownJobError, error_to_message
from darkroom.v1 import job_pb2

# Server time in milliseconds, then random digits: sorts by time.
JOB_ID = re.compile(r"[0-9a-f]{12}[0-9a-f]{12}")
CANCELLED = error_to_message(CancelledError("the job was cancelled on request"))
LATE = error_to_message(
    DeadlineError("the job's deadline passed before its end; allow more time, or try when less is waiting")
)


@dataclass(frozen=True)
class Bounds:
    """How many jobs may wait."""

    in_all: int
    of_tenant: int


# A priority's rank in line; nothing said is normal.
RANKS = {job_pb2.JOB_PRIORITY_HIGH: 0, job_pb2.JOB_PRIORITY_LOW: 2}
NORMAL_RANK = 1
DEFAULT_TENANT = "default"


class Wish(enum.StrEnum):
    """What somebody wants of a running job; the first one is false."""

    GO_ON = ""
    CANCEL = "cancel"
    DEADLINE = "deadline"


class Setback(enum.StrEnum):
    """Why a running job goes back to the queue, and what it is charged."""

    RELEASED = "released"
    LOST = "lost"
    DEATH = "death"
    # The engine died while it made several jobs' pictures together: nobody knows whose fault it was.
    SUSPECT = "suspect"


def check_job_id(job_id: str) -> None:
    """Raises UnknownJobError for what can't be a job's id, so that no other text reaches a key or a path."""
    if not JOB_ID.fullmatch(job_id):
        raise unknown(job_id)


def unknown(job_id: str) -> UnknownJobError:
    """Returns the error for a job that is not there."""
    return UnknownJobError(f"there is no job {job_id[:64]!r}; `darkroom jobs list` shows all", job_id=job_id[:64])


def to_ms(seconds: float) -> int:
    """Returns whole milliseconds, as scripts take them."""
    return int(seconds * 1000)
