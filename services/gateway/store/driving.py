"""What whoever drives a job or holds a worker does: claim, renew, tell, end, give back.

Knows nothing of workers' addresses. Invariant: a stale token changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from darkroom.rpc.errors import (
    CancelledError,
    StaleTokenError,
    WorkerHeldError,
    error_from_message,
)
from darkroom.v1 import error_pb2, generation_pb2, job_pb2, worker_pb2
from services.gateway.store import keys
from services.gateway.store.connection import answered
from services.gateway.store.record import Claim, claim_of
from services.gateway.store.scripts import Scripts
from services.gateway.store.vocabulary import CANCELLED, LATE, Setback, Wish, to_ms

# Sequence within the run, 0 for the gateway's own, and progress.
Entry = tuple[int, generation_pb2.Progress]


class Driving:
    """The drivers' part of the jobs."""

    _scripts: Scripts
    _store_candidate: str

    async def claim(
        self,
        worker_id: str,
        loaded_kind: str,
        elsewhere: Sequence[str],
        patience_s: float,
        lease_s: float,
        rooms: Mapping[str, int] | None = None,
    ) -> Claim | float:
        """Takes the next job for a free worker, and those of its shape with it that the worker has room for.

        Args:
            worker_id: of the worker.
            loaded_kind: of jobs that its loaded plan is good for, or "".
            elsewhere: kinds that other workers have loaded.
            patience_s: how long the head of the line may be passed over.
            lease_s: length of the leases.
            rooms: by size, as 512x512, how many pictures the loaded plan has room for at once; one where absent.

        Returns:
            The claim, or how many seconds to wait for more than a new job; infinite where only a new job helps.
        """
        answer = await self._scripts.call(
            "claim",
            worker_id,
            loaded_kind,
            to_ms(patience_s),
            to_ms(lease_s),
            self._store_candidate,
            LATE.SerializeToString(),
            " ".join(f"{size}={most}" for size, most in (rooms or {}).items()),
            *elsewhere,
            lasting=True,
        )
        if answer[0] == b"claimed":
            return claim_of(answer[1:], is_adopted=False)
        if answer[0] == b"none" and answer[1] >= 0:
            return max(0.02, int(answer[1]) / 1000)
        return float("inf")

    async def adopt(self, lease_s: float, *, is_late_only: bool = False) -> Claim | None:
        """Takes over one running job that its gateway abandoned, if there is one, with all that runs beside it.

        Args:
            lease_s: length of the leases.
            is_late_only: take none but a job past its deadline.
        """
        answer = await self._scripts.call("adopt", to_ms(lease_s), int(is_late_only), lasting=True)
        return claim_of(answer, is_adopted=True) if answer else None

    async def renew(self, claim: Claim, lease_s: float) -> Wish:
        """Prolongs a lease; returns what somebody wants of the job. Raises StaleTokenError."""
        return self._standing(claim, await self._scripts.call("renew", *_guard(claim), to_ms(lease_s)))

    async def append(self, claim: Claim, entries: Sequence[Entry]) -> Wish:
        """Keeps progress, each once: its sequence within the run, or 0 for the gateway's own. Returns as `renew`."""
        return self._standing(claim, await self._scripts.call("append", *_guard(claim), *_pairs(entries)))

    async def affirm(self, claim: Claim) -> None:
        """Raises StaleTokenError if a newer claim has the job, or had it when it ended."""
        with answered():
            newest = await self._scripts.line.ask("HGET", keys.job(claim.job.id), "token")
        if newest is None or int(newest) != claim.token.counter:
            raise _stale(claim)

    async def begin_run(self, claim: Claim, run_id: str) -> None:
        """Names the next run of the same attempt. Raises StaleTokenError."""
        self._standing(claim, await self._scripts.call("begin_run", *_guard(claim), run_id, lasting=True))

    async def succeed(self, claim: Claim, output: generation_pb2.Output, entries: Sequence[Entry] = ()) -> None:
        """Ends the job with its output, after progress that was not kept yet.

        Raises:
            StaleTokenError: a newer claim has the job.
            DeadlineError: its deadline has passed.
        """
        state = job_pb2.JOB_STATE_SUCCEEDED
        await self._finish(claim, state, output.SerializeToString(), b"", output.size_bytes, entries)

    async def fail(self, claim: Claim, error: error_pb2.Error) -> None:
        """Ends the job with an error; CANCELLED if that is its reason. Raises StaleTokenError."""
        is_cancel = error.reason == CancelledError.reason
        state = job_pb2.JOB_STATE_CANCELLED if is_cancel else job_pb2.JOB_STATE_FAILED
        await self._finish(claim, state, b"", error.SerializeToString())

    async def requeue(
        self,
        claim: Claim,
        setback: Setback,
        bound: int,
        failed: error_pb2.Error,
        cause: error_pb2.Error | None = None,
    ) -> None:
        """Gives the job back to the queue, or fails it with `failed` when `setback` happened `bound` times.

        A job that somebody wants cancelled, or whose deadline has passed, ends so instead.
        `cause` is kept as the evidence of this attempt.

        Raises:
            StaleTokenError: a newer claim has the job.
        """
        answer = await self._scripts.call(
            "requeue",
            *_guard(claim),
            setback.value,
            bound,
            bound,
            CANCELLED.SerializeToString(),
            failed.SerializeToString(),
            LATE.SerializeToString(),
            _evidence(claim, cause or failed),
            lasting=True,
        )
        if answer[0] in (b"stale", b"missing"):
            raise _stale(claim)

    async def forfeit(self, claim: Claim) -> None:
        """Lets another gateway adopt the job at once."""
        await self._scripts.call("forfeit", *_guard(claim), lasting=True)

    async def _finish(
        self, claim: Claim, state: int, output: bytes, error: bytes, num_bytes: int = 0, entries: Sequence[Entry] = ()
    ) -> None:
        end = (state, output, error, num_bytes)
        answer = await self._scripts.call("finish", *_guard(claim), *end, *_pairs(entries), lasting=True)
        if answer[0] == b"late":
            raise error_from_message(LATE)
        if answer[0] in (b"stale", b"missing"):
            raise _stale(claim)

    async def end_overdue(self) -> float:
        """Ends waiting jobs whose deadlines have passed, and wakes the drivers of running ones.

        Returns:
            Seconds until the next deadline, infinite where there is none.
        """
        left_ms = int((await self._scripts.call("overdue", LATE.SerializeToString(), lasting=True))[0])
        return left_ms / 1000 if left_ms >= 0 else float("inf")

    def _standing(self, claim: Claim, answer: Sequence[bytes]) -> Wish:
        if answer[0] != b"ok":
            raise _stale(claim)
        return Wish(answer[1].decode())

    async def hold_worker(self, worker_id: str, lease_s: float) -> worker_pb2.FencingToken:
        """Claims a worker that has no job. Raises WorkerHeldError."""
        answer = await self._scripts.call("hold_worker", worker_id, to_ms(lease_s), self._store_candidate)
        if len(answer) == 1:
            who = f"job {answer[0].decode()}" if answer[0] else "another operator's load"
            raise WorkerHeldError(f"{who} holds worker {worker_id}; wait until it is done", worker_id=worker_id)
        return worker_pb2.FencingToken(store_id=answer[1].decode(), counter=int(answer[0]))

    async def keep_worker(self, worker_id: str, token: worker_pb2.FencingToken, lease_s: float) -> None:
        """Prolongs an operator's claim; 0 s ends it."""
        await self._scripts.call("keep_worker", worker_id, token.counter, to_ms(lease_s))


def _evidence(claim: Claim, cause: error_pb2.Error) -> bytes:
    job = job_pb2.Job()
    attempt = job.failed_attempts.add(attempt=claim.job.attempts, worker_id=claim.job.worker_id, error=cause)
    attempt.happened_at.GetCurrentTime()
    return job.SerializeToString()


def _pairs(entries: Sequence[Entry]) -> list[int | bytes]:
    return [part for sequence, progress in entries for part in (sequence, progress.SerializeToString())]


def _guard(claim: Claim) -> tuple[str, int]:
    return claim.job.id, claim.token.counter


def _stale(claim: Claim) -> StaleTokenError:
    text = f"claim {claim.token.counter} of job {claim.job.id} is stale"
    return StaleTokenError(text, job_id=claim.job.id, counter=claim.token.counter)
