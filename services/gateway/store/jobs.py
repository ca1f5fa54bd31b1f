"""The jobs: every step of their lives, one script each.

Knows nothing of workers' addresses or RPCs. Invariants: what returns is on disk; a stale token changes nothing.
"""

from __future__ import annotations

import enum
import hashlib
import re
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import redis.asyncio as aioredis

from darkroom.rpc.errors import (
    CancelledError,
    DeadlineError,
    NotDeadError,
    QueueFullError,
    RequestIdReusedError,
    StaleTokenError,
    UnknownJobError,
    WorkerHeldError,
    error_from_message,
    error_to_message,
)
from darkroom.v1 import error_pb2, generation_pb2, job_pb2, worker_pb2
from services.gateway.store import keys
from services.gateway.store.connection import answered
from services.gateway.store.record import Claim, Fields, claim_of, fields_of, job_message
from services.gateway.store.scripts import Scripts

# Server time in milliseconds, then random digits: sorts by time.
JOB_ID = re.compile(r"[0-9a-f]{12}[0-9a-f]{12}")
CANCELLED = error_to_message(CancelledError("the job was cancelled on request"))


LATE = error_to_message(
    DeadlineError("the job's deadline passed before its end; allow more time, or try when less is waiting")
)


# States of jobs that name a file, or are about to: the one of their newest claim.
NAMING = (b"%d" % job_pb2.JOB_STATE_RUNNING, b"%d" % job_pb2.JOB_STATE_SUCCEEDED)


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


class Jobs:
    """The jobs of one Redis."""

    def __init__(self, client: aioredis.Redis, scripts: Scripts) -> None:
        self._client = client
        self._scripts = scripts
        # Taken by the first claim of a new database; every gateway offers one.
        self._store_candidate = secrets.token_hex(8)

    async def submit(
        self,
        request: generation_pb2.GenerationRequest,
        kind: str,
        request_id: str,
        digest: str,
        bounds: Bounds,
        terms: job_pb2.JobTerms | None = None,
        tenant: str = DEFAULT_TENANT,
    ) -> job_pb2.Job:
        """Accepts a job; it is on disk when this returns.

        Args:
            request: every field filled in.
            kind: jobs of one kind run on the same loaded plan.
            request_id: of the caller's making, or "".
            digest: of the request as it came.
            bounds: of the queue.
            terms: checked.
            tenant: whose it is.

        Raises:
            RequestIdReusedError: another request had this id.
            QueueFullError: too many jobs wait, of all or of this tenant.
        """
        data = request.SerializeToString(deterministic=True)
        suffix = secrets.token_hex(6)
        terms = terms or job_pb2.JobTerms()
        answer = await self._scripts.call(
            "submit",
            suffix,
            data,
            kind,
            request_id,
            digest,
            terms.SerializeToString(deterministic=True),
            terms.deadline.ToMilliseconds(),
            RANKS.get(terms.priority, NORMAL_RANK),
            tenant,
            bounds.in_all,
            bounds.of_tenant,
            lasting=True,
        )
        return _accepted(answer, request_id, bounds)

    async def redrive(self, job_id: str, request_id: str, bounds: Bounds) -> job_pb2.Job:
        """Makes a new job of a dead one, once; it is on disk when this returns.

        Raises:
            UnknownJobError: there is no such job.
            NotDeadError: it did not end as a dead one.
            RequestIdReusedError: another request had this id.
            QueueFullError: too many jobs wait.
        """
        check_job_id(job_id)
        suffix, digest = secrets.token_hex(6), f"redrive {job_id}"
        answer = await self._scripts.call(
            "redrive", job_id, suffix, request_id, digest, bounds.in_all, bounds.of_tenant, lasting=True
        )
        if answer[0] == b"missing":
            raise unknown(job_id)
        if answer[0] == b"not dead":
            text = f"job {job_id} is not dead; `darkroom jobs dead` lists what can be re-driven"
            raise NotDeadError(text, job_id=job_id, state=job_pb2.JobState.Name(int(answer[1])))  # type: ignore[arg-type]
        return _accepted(answer, request_id, bounds)

    async def get(self, job_id: str) -> job_pb2.Job:
        """Returns a job. Raises UnknownJobError."""
        check_job_id(job_id)
        with answered():
            fields: Fields = await self._client.hgetall(keys.job(job_id))  # type: ignore[assignment]
        if b"state" not in fields:
            raise unknown(job_id)
        return job_message(job_id, fields)

    async def file_token(self, job_id: str) -> int:
        """Returns the counter of the claim that finished the job: half of its file's name."""
        with answered():
            return int(await self._client.hget(keys.job(job_id), "token") or 0)

    async def newest(self, states: Iterable[int], below: str, count: int) -> list[job_pb2.Job]:
        """Returns up to `count` jobs in any of `states` whose ids sort below `below` ("" for all), newest first."""
        return await self._listed([keys.in_state(state) for state in states], below, count)

    async def dead(self, below: str, count: int) -> list[job_pb2.Job]:
        """Returns up to `count` dead jobs whose ids sort below `below` ("" for all), newest first."""
        return await self._listed([keys.DEAD], below, count)

    async def _listed(self, lists: Sequence[str], below: str, count: int) -> list[job_pb2.Job]:
        top = f"({below}" if below else "+"
        with answered():
            async with self._client.pipeline(transaction=True) as pipe:
                for key in lists:
                    pipe.zrange(key, top, "-", desc=True, bylex=True, offset=0, num=count)
                found = await pipe.execute()
            ids = sorted({job_id.decode() for page in found for job_id in page}, reverse=True)[:count]
            async with self._client.pipeline(transaction=False) as pipe:
                for job_id in ids:
                    pipe.hgetall(keys.job(job_id))
                records = await pipe.execute()
        return [job_message(job_id, fields) for job_id, fields in zip(ids, records, strict=True) if fields]

    async def num_queued(self) -> int:
        """Returns how many jobs wait."""
        with answered():
            return int(await self._client.zcard(keys.QUEUE))

    async def cancel(self, job_id: str) -> job_pb2.Job:
        """Ends a queued job, asks a running one to stop. Raises UnknownJobError."""
        check_job_id(job_id)
        record = await self._scripts.call("cancel", job_id, CANCELLED.SerializeToString(), lasting=True)
        if not record:
            raise unknown(job_id)
        return job_message(job_id, fields_of(record))

    async def note(self, job_id: str, progress: generation_pb2.Progress) -> None:
        """Tells why a queued job waits."""
        await self._scripts.call("note", job_id, progress.SerializeToString())

    # -- what the holder of a worker does ---------------------------------------------------------------------------

    async def claim(
        self, worker_id: str, loaded_kind: str, elsewhere: Sequence[str], patience_s: float, lease_s: float
    ) -> Claim | float:
        """Takes the next job for a free worker.

        Returns:
            The claim, or how many seconds to wait for more than a new job; infinite where only a new job helps.
        """
        answer = await self._scripts.call(
            "claim",
            worker_id,
            loaded_kind,
            _ms(patience_s),
            _ms(lease_s),
            self._store_candidate,
            LATE.SerializeToString(),
            *elsewhere,
            lasting=True,
        )
        if answer[0] == b"claimed":
            return claim_of(*answer[1:6], is_adopted=False)
        if answer[0] == b"none" and answer[1] >= 0:
            return max(0.02, int(answer[1]) / 1000)
        return float("inf")

    async def adopt(self, lease_s: float) -> Claim | None:
        """Takes over one running job that its gateway abandoned, if there is one."""
        answer = await self._scripts.call("adopt", _ms(lease_s), lasting=True)
        return claim_of(*answer[:5], is_adopted=True) if answer else None

    async def abandon_all_leases(self) -> None:
        """Makes every running job adoptable at once. Only for whoever knows that no other gateway is alive."""
        with answered():
            running: list[bytes] = await self._client.zrange(keys.LEASES, 0, -1)  # type: ignore[assignment]
            if running:
                await self._client.zadd(keys.LEASES, dict.fromkeys(running, 0), xx=True)

    async def renew(self, claim: Claim, lease_s: float) -> Wish:
        """Prolongs a lease; returns what somebody wants of the job. Raises StaleTokenError."""
        return self._standing(claim, await self._scripts.call("renew", *_guard(claim), _ms(lease_s)))

    async def append(self, claim: Claim, entries: Sequence[tuple[int, generation_pb2.Progress]]) -> Wish:
        """Keeps progress, each once: its sequence within the run, or 0 for the gateway's own. Returns as `renew`."""
        pairs = [part for sequence, progress in entries for part in (sequence, progress.SerializeToString())]
        return self._standing(claim, await self._scripts.call("append", *_guard(claim), *pairs))

    async def begin_run(self, claim: Claim, run_id: str) -> None:
        """Names the next run of the same attempt. Raises StaleTokenError."""
        self._standing(claim, await self._scripts.call("begin_run", *_guard(claim), run_id, lasting=True))

    async def succeed(self, claim: Claim, output: generation_pb2.Output) -> None:
        """Ends the job with its output. Raises StaleTokenError, or DeadlineError when its deadline has passed."""
        await self._finish(claim, job_pb2.JOB_STATE_SUCCEEDED, output.SerializeToString(), b"", output.size_bytes)

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

    async def _finish(self, claim: Claim, state: int, output: bytes, error: bytes, num_bytes: int = 0) -> None:
        answer = await self._scripts.call("finish", *_guard(claim), state, output, error, num_bytes, lasting=True)
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

    # -- operators --------------------------------------------------------------------------------------------------

    async def hold_worker(self, worker_id: str, lease_s: float) -> worker_pb2.FencingToken:
        """Claims a worker that has no job. Raises WorkerHeldError."""
        answer = await self._scripts.call("hold_worker", worker_id, _ms(lease_s), self._store_candidate)
        if len(answer) == 1:
            who = f"job {answer[0].decode()}" if answer[0] else "another operator's load"
            raise WorkerHeldError(f"{who} holds worker {worker_id}; wait until it is done", worker_id=worker_id)
        return worker_pb2.FencingToken(store_id=answer[1].decode(), counter=int(answer[0]))

    async def keep_worker(self, worker_id: str, token: worker_pb2.FencingToken, lease_s: float) -> None:
        """Prolongs an operator's claim; 0 s ends it."""
        await self._scripts.call("keep_worker", worker_id, token.counter, _ms(lease_s))

    # -- housekeeping -----------------------------------------------------------------------------------------------

    async def expire(
        self, retention_s: float, count: int, most_bytes: int = 0, spared_s: float = float("inf")
    ) -> list[str]:
        """Forgets ended jobs, the oldest first; returns their ids.

        Args:
            retention_s: jobs that ended longer ago are forgotten.
            count: most jobs.
            most_bytes: while outputs take more than this, younger ones are forgotten too; 0: never.
            spared_s: ended jobs that are younger than this and than `retention_s` stay in any case.
        """
        spared_ms = _ms(min(spared_s, retention_s))
        answer = await self._scripts.call("expire", _ms(retention_s), count, most_bytes, spared_ms, lasting=True)
        return [job_id.decode() for job_id in answer]

    async def orphans(self, folder: str, files: Sequence[tuple[str, int]]) -> list[tuple[str, int]]:
        """Returns those of `files`, each a job and the counter of a claim, that no job names or can still name.

        Whoever has another folder than these jobs gets none, and files from before this database was made are never
        among them.
        """
        with answered():
            async with self._client.pipeline(transaction=True) as pipe:
                pipe.mget(keys.OUTPUTS, keys.SINCE)
                for job_id, _ in files:
                    pipe.hmget(keys.job(job_id), "state", "token")
                (name, since_ms), *records = await pipe.execute()
        if name is None or name.decode() != folder or since_ms is None:
            return []
        oldest = f"{int(since_ms):012x}"
        return [
            (job_id, counter)
            for (job_id, counter), (state, token) in zip(files, records, strict=True)
            if job_id >= oldest and (state not in NAMING or int(token) != counter)
        ]

    async def register_outputs(self, name: str) -> str:
        """Names the output folder of these jobs; returns the name that was first."""
        with answered():
            seconds, microseconds = await self._client.time()
            await self._client.set(keys.SINCE, seconds * 1000 + microseconds // 1000, nx=True)
            await self._client.set(keys.OUTPUTS, name, nx=True)
            first: bytes = await self._client.get(keys.OUTPUTS)  # type: ignore[assignment]
        return first.decode()

    async def ping(self) -> None:
        """Raises StoreUnavailableError if the server does not answer."""
        with answered():
            await self._client.ping()


def check_job_id(job_id: str) -> None:
    """Raises UnknownJobError for what can't be a job's id, so that no other text reaches a key or a path."""
    if not JOB_ID.fullmatch(job_id):
        raise unknown(job_id)


def unknown(job_id: str) -> UnknownJobError:
    """Returns the error for a job that is not there."""
    return UnknownJobError(f"there is no job {job_id[:64]!r}; `darkroom jobs list` shows all", job_id=job_id[:64])


def digest_of(request: generation_pb2.GenerationRequest, terms: job_pb2.JobTerms) -> str:
    """Returns what two equal requests under equal terms share."""
    both = (request.SerializeToString(deterministic=True), terms.SerializeToString(deterministic=True))
    return hashlib.sha256(b"".join(both)).hexdigest()


def _accepted(answer: Sequence[Any], request_id: str, bounds: Bounds) -> job_pb2.Job:
    """Returns the job that a script accepted, or raises why it did not."""
    outcome = answer[0]
    if outcome == b"reused":
        text = f"request_id {request_id} was used with another request, for job {answer[1].decode()}; take a new one"
        raise RequestIdReusedError(text, job_id=answer[1].decode())
    if outcome == b"full":
        waiting, tenant = int(answer[1]), answer[2].decode()
        limit, whose = (bounds.of_tenant, f" of tenant {tenant}") if tenant else (bounds.in_all, "")
        raise QueueFullError(
            f"{waiting} jobs{whose} wait already, which is the limit; try again later",
            retry_after_s=5.0,
            subject=f"tenant:{tenant}" if tenant else "queue",
            queued_jobs=waiting,
            max_queued_jobs=limit,
        )
    return job_message(answer[1].decode(), fields_of(answer[2]))


def _evidence(claim: Claim, cause: error_pb2.Error) -> bytes:
    job = job_pb2.Job()
    attempt = job.failed_attempts.add(attempt=claim.job.attempts, worker_id=claim.job.worker_id, error=cause)
    attempt.happened_at.GetCurrentTime()
    return job.SerializeToString()


def _guard(claim: Claim) -> tuple[str, int]:
    return claim.job.id, claim.token.counter


def _stale(claim: Claim) -> StaleTokenError:
    text = f"claim {claim.token.counter} of job {claim.job.id} is stale"
    return StaleTokenError(text, job_id=claim.job.id, counter=claim.token.counter)


def _ms(seconds: float) -> int:
    return int(seconds * 1000)
