"""A job's events, for watchers: the state first, then what follows, the terminal state last.

Knows nothing of who watches. Invariant: within one watch sequences rise strictly, and the terminal state is told once,
as the last message.

The first message is the job as it is; its sequence is where the watch goes on from: the cursor, or the last change of
state if that is newer. Its progress is the one at that place, so that what follows never goes back.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable

import redis.asyncio as aioredis

from darkroom.v1 import job_pb2
from services.gateway.store import bell, keys
from services.gateway.store.connection import answered
from services.gateway.store.line import Line
from services.gateway.store.record import Fields, is_terminal, job_message, set_time
from services.gateway.store.vocabulary import check_job_id, unknown

# Rings can be missed while Redis restarts; this often a watcher looks by itself.
LOOK_S = 1.0
PAGE = 200

Entry = tuple[bytes, Fields]


class Events:
    """Follows jobs of one Redis."""

    def __init__(self, client: aioredis.Redis, rings: bell.Bell) -> None:
        self._line = Line(client)
        self._bell = rings

    async def close(self) -> None:
        """Gives up what is being read."""
        await self._line.close()

    async def watch(
        self, job_id: str, after: int, on_quiet: Callable[[job_pb2.Job], Awaitable[None]]
    ) -> AsyncGenerator[list[job_pb2.JobEvent], None]:
        """Yields the job's state, its events after `after`, those together that are there, up to the terminal state.

        Args:
            job_id: the job.
            after: cursor; 0 for all that is kept.
            on_quiet: called with the job as last told after every second without news; may raise to end the watch.

        Raises:
            UnknownJobError: there is no such job.
        """
        check_job_id(job_id)
        with self._bell.topic(bell.events(job_id)) as news:
            job, cursor = await self._opening(job_id, after)
            yield [job_pb2.JobEvent(sequence=cursor, job=job)]
            while not is_terminal(job):
                # Rings before this are answered by the page that follows, later ones by the wait.
                news.ticket()
                entries, told = await self._page(job_id, cursor), list[job_pb2.JobEvent]()
                for entry_id, fields in entries:
                    cursor = _sequence(entry_id)
                    told.append(await self._event(job, cursor, fields))
                    if told[-1].HasField("job"):
                        job = told[-1].job
                if told:
                    yield told
                goes_on = is_terminal(job) or len(entries) == PAGE
                if not goes_on and not await news.wait(LOOK_S):
                    await on_quiet(job)
                    if (late := await self._ended_unseen(job_id, cursor)) is not None:
                        yield [late]
                        return

    async def _opening(self, job_id: str, after: int) -> tuple[job_pb2.Job, int]:
        """Returns the job as the first message tells it, and the cursor from which events follow."""
        fields = await self._record(job_id)
        job = job_message(job_id, fields)
        if is_terminal(job):
            return job, job.last_sequence
        start = min(max(after, int(fields.get(b"state_seq", 0))), job.last_sequence)
        if start == job.last_sequence:
            return job, start
        following = await self._page(job_id, start, count=1)
        if not following or _sequence(following[0][0]) != start + 1:
            return job, job.last_sequence  # the cap has cut what lies between
        job.ClearField("progress")
        with answered():
            last: list[Entry] = await self._line.ask("XREVRANGE", keys.events(job_id), f"{start}-0", "-", "COUNT", 1)
        if last and (data := last[0][1].get(b"progress")):
            job.progress.ParseFromString(data)
        return job, start

    async def _event(self, job: job_pb2.Job, sequence: int, fields: Fields) -> job_pb2.JobEvent:
        event = job_pb2.JobEvent(sequence=sequence)
        if b"progress" in fields:
            event.progress.ParseFromString(fields[b"progress"])
            return event
        told = job_pb2.Job(
            id=job.id,
            state=int(fields[b"state"]),  # type: ignore[arg-type]
            request=job.request,
            tenant=job.tenant,
            terms=job.terms if job.HasField("terms") else None,
            created_at=job.created_at,
            deadline_at=job.deadline_at if job.HasField("deadline_at") else None,
            attempts=int(fields[b"attempts"]),
            worker_id=fields[b"worker"].decode(),
            last_sequence=sequence,
        )
        set_time(told.started_at, fields[b"started_ms"])
        # A terminal record never changes: read whole, output and error included.
        event.job.CopyFrom(job_message(job.id, await self._record(job.id)) if is_terminal(told) else told)
        return event

    async def _page(self, job_id: str, after: int, count: int = PAGE) -> list[Entry]:
        with answered():
            page: list[Entry] = await self._line.ask("XRANGE", keys.events(job_id), f"({after}-0", "+", "COUNT", count)
        return page

    async def _record(self, job_id: str) -> Fields:
        with answered():
            fields: Fields = await self._line.ask("HGETALL", keys.job(job_id))
        if b"state" not in fields:
            raise unknown(job_id)
        return fields

    async def _ended_unseen(self, job_id: str, cursor: int) -> job_pb2.JobEvent | None:
        """Returns the terminal state of a job whose events are gone already: a watcher that slept for a while."""
        job = job_message(job_id, await self._record(job_id))
        if not is_terminal(job) or await self._page(job_id, cursor, count=1):
            return None
        return job_pb2.JobEvent(sequence=job.last_sequence, job=job)


def _sequence(entry_id: bytes) -> int:
    return int(entry_id.partition(b"-")[0])
