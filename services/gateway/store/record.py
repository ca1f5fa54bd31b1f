"""Between a job's hash in Redis and its message.

Knows nothing of Redis commands. Invariant: what a client sees of a job is a function of its hash alone.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from google.protobuf import timestamp_pb2

from darkroom.v1 import job_pb2, worker_pb2

TERMINAL = (job_pb2.JOB_STATE_SUCCEEDED, job_pb2.JOB_STATE_FAILED, job_pb2.JOB_STATE_CANCELLED)
Fields = Mapping[bytes, bytes]


@dataclass(frozen=True)
class Claim:
    """The right to drive one job: what a claim or an adoption gives."""

    job: job_pb2.Job
    token: worker_pb2.FencingToken
    # Name of the run on the worker; a re-attach uses the same.
    run_id: str
    # Last event of the run that is kept already.
    run_sequence: int
    is_adopted: bool
    # How often the run was adopted before anything was heard of it.
    num_unheard: int = 0
    # The job's deadline on this machine's monotonic clock; None without one. Not earlier than by the server's clock.
    ends_at: float | None = None
    # Claims of the jobs that run with it as one batch, under the same token.
    others: tuple[Claim, ...] = ()

    @property
    def left_s(self) -> float | None:
        """Seconds until the job's deadline; None where it has none."""
        return None if self.ends_at is None else max(0.0, self.ends_at - time.monotonic())


def fields_of(flat: Sequence[bytes]) -> dict[bytes, bytes]:
    """Returns HGETALL's answer from a script as a table."""
    return dict(zip(flat[::2], flat[1::2], strict=True))


def is_terminal(job: job_pb2.Job) -> bool:
    """Returns True once nothing changes any more."""
    return job.state in TERMINAL


def job_message(job_id: str, fields: Fields) -> job_pb2.Job:
    """Returns the job that `fields` describe."""
    job = job_pb2.Job(
        id=job_id,
        state=int(fields[b"state"]),  # type: ignore[arg-type]
        attempts=int(fields.get(b"attempts", 0)),
        worker_id=fields.get(b"worker", b"").decode(),
        last_sequence=int(fields.get(b"seq", 0)),
    )
    job.request.ParseFromString(fields[b"request"])
    for name in ("terms", "progress", "output", "error"):
        if data := fields.get(name.encode()):
            getattr(job, name).ParseFromString(data)
    job.tenant = fields.get(b"tenant", b"default").decode()
    job.redriven_as = fields.get(b"redriven_as", b"").decode()
    job.redriven_from = fields.get(b"redriven_from", b"").decode()
    if attempts := fields.get(b"failed_attempts"):
        job.MergeFromString(attempts)
    set_time(job.created_at, fields.get(b"created_ms", b""))
    set_time(job.started_at, fields.get(b"started_ms", b""))
    set_time(job.finished_at, fields.get(b"finished_ms", b""))
    set_time(job.deadline_at, fields.get(b"deadline_ms", b""))
    return job


def set_time(target: timestamp_pb2.Timestamp, milliseconds: bytes) -> None:
    """Sets a time from the server's clock; an empty text leaves it absent."""
    if milliseconds:
        target.FromMilliseconds(int(milliseconds))


def claim_of(answer: Sequence[Any], *, is_adopted: bool) -> Claim:
    """Returns the claim that a script's answer describes: token, store, now, then id and record of each job."""
    counter, store_id, now_ms, *jobs = answer
    token = worker_pb2.FencingToken(store_id=store_id.decode(), counter=int(counter))
    first, *others = (
        _claim(job_id, token, fields_of(record), int(now_ms), is_adopted)
        for job_id, record in zip(jobs[::2], jobs[1::2], strict=True)
    )
    return replace(first, others=tuple(others))


def _claim(job_id: bytes, token: worker_pb2.FencingToken, fields: Fields, now_ms: int, is_adopted: bool) -> Claim:
    deadline_ms = fields.get(b"deadline_ms")
    return Claim(
        job=job_message(job_id.decode(), fields),
        token=token,
        run_id=fields[b"run"].decode(),
        run_sequence=int(fields.get(b"run_seq", 0)),
        is_adopted=is_adopted,
        num_unheard=int(fields.get(b"unheard", 0)),
        ends_at=time.monotonic() + (int(deadline_ms) - now_ms) / 1000 if deadline_ms else None,
    )
