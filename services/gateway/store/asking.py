"""What callers do with jobs: submit, look, list, cancel, re-drive.

Knows nothing of workers. Invariant: what returns is on disk.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import redis.asyncio as aioredis

from darkroom.rpc.errors import NotDeadError, QueueFullError, RequestIdReusedError
from darkroom.v1 import generation_pb2, job_pb2
from services.gateway.store import keys
from services.gateway.store.connection import answered
from services.gateway.store.record import Fields, fields_of, job_message
from services.gateway.store.scripts import Scripts
from services.gateway.store.vocabulary import (
    CANCELLED,
    DEFAULT_TENANT,
    NORMAL_RANK,
    RANKS,
    Bounds,
    check_job_id,
    unknown,
)


class Asking:
    """The callers' part of the jobs."""

    _client: aioredis.Redis
    _scripts: Scripts
    _make_suffix: Callable[[], str]

    async def submit(
        self,
        request: generation_pb2.GenerationRequest,
        kind: str,
        request_id: str,
        digest: str,
        bounds: Bounds,
        terms: job_pb2.JobTerms | None = None,
        tenant: str = DEFAULT_TENANT,
        shape: str = "",
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
            shape: jobs of one shape may run as one batch; it begins with the size, as 512x512. "" runs alone.

        Raises:
            RequestIdReusedError: another request had this id.
            QueueFullError: too many jobs wait, of all or of this tenant.
        """
        data = request.SerializeToString(deterministic=True)
        suffix = self._make_suffix()
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
            shape,
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
        suffix, digest = self._make_suffix(), f"redrive {job_id}"
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
            fields: Fields = await self._scripts.line.ask("HGETALL", keys.job(job_id))
        if b"state" not in fields:
            raise unknown(job_id)
        return job_message(job_id, fields)

    async def file_token(self, job_id: str) -> int:
        """Returns the counter of the claim that finished the job: half of its file's name."""
        with answered():
            return int(await self._scripts.line.ask("HGET", keys.job(job_id), "token") or 0)

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
