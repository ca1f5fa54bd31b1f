"""Runs and what they leave: numbered events and output bytes, kept until acknowledged.

Knows nothing of engines or tokens' order. Invariants: events of a run are numbered 1, 2, 3…; every item ends once, with
an output or an error; what is kept stays within its bounds.
"""

from __future__ import annotations

import contextlib
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator

from darkroom.rpc.errors import DarkroomError, error_to_message
from darkroom.v1 import worker_pb2
from services.worker.arbiter import Activity
from services.worker.event_log import EventLog

# Names of items that the worker once had, so that a late cancel is told from a wrong one.
REMEMBERED_JOBS = 10_000
# Of files that are told together: a message may have 4 MiB.
PARCEL_BYTES = 2**20


class Run(Activity):
    """One run: its items, its events, and who follows it."""

    def __init__(self, run_id: str, model: str, items: Iterable[worker_pb2.RunItem]) -> None:
        super().__init__()
        self.run_id = run_id
        self.model = model
        self.items = list(items)
        # Why each item that was asked to stop was, by its name.
        self.ended_early: dict[str, DarkroomError] = {}
        # Set while the engine works on the run: asks it to stop one item.
        self.on_cancel: Callable[[str], None] | None = None
        self.acknowledged: set[str] = set()
        # Reason of each item that failed, by its name.
        self.failures: dict[str, str] = {}
        self._bytes: dict[str, int] = {}
        self._begun: set[str] = set()
        self.touched_at = time.monotonic()
        self._log: EventLog[worker_pb2.RunEvent] = EventLog()
        self._missing: dict[str, int | None] = dict.fromkeys(self.job_ids)
        self._followers = 0
        self._progressed_at = time.monotonic()

    @property
    def job_ids(self) -> list[str]:
        """Its items' names, in order."""
        return [item.job_id for item in self.items]

    @property
    def is_over(self) -> bool:
        """True when every item has ended."""
        return self._log.is_closed

    @property
    def is_followed(self) -> bool:
        """True while somebody reads its events."""
        return self._followers > 0

    @property
    def kept_bytes(self) -> int:
        """Output bytes that are kept."""
        return sum(self._bytes.values())

    def has_ended(self, job_id: str) -> bool:
        """True when the item has its whole output, or an error."""
        return job_id not in self._missing

    @property
    def being_made(self) -> list[str]:
        """Items that the engine has begun and that have not ended; all that have not ended where it has begun none."""
        left = list(self._missing)
        return [job_id for job_id in left if job_id in self._begun] or left

    def record(self, event: worker_pb2.RunEvent) -> None:
        """Numbers and keeps what the engine said of an item; what comes after the item's end is dropped."""
        if event.job_id not in self._missing:
            return
        self._begun.add(event.job_id)
        event.sequence = len(self._log) + 1
        self._progressed_at = time.monotonic()
        self._log.append(event)
        if event.HasField("output"):
            self._missing[event.job_id] = event.output.size_bytes
        elif event.HasField("chunk"):
            self._bytes[event.job_id] = self._bytes.get(event.job_id, 0) + len(event.chunk.data)
            left = (self._missing[event.job_id] or 0) - len(event.chunk.data)
            self._missing[event.job_id] = left
        if event.HasField("error"):
            self.failures[event.job_id] = event.error.reason
        if event.HasField("error") or (event.HasField("chunk") and self._missing[event.job_id] == 0):
            self._end(event.job_id)

    def fail(self, error: DarkroomError, job_ids: Iterable[str] | None = None) -> None:
        """Ends the given items, or all that have not ended, with `error`."""
        for job_id in list(self._missing) if job_ids is None else list(job_ids):
            self.record(worker_pb2.RunEvent(job_id=job_id, error=error_to_message(error)))

    def acknowledge(self, job_id: str) -> None:
        """Frees the item's output. Its other events stay."""
        self.acknowledged.add(job_id)
        self._log.forget(lambda event: event.job_id == job_id and event.HasField("chunk"))
        self._bytes.pop(job_id, None)

    @property
    def is_settled(self) -> bool:
        """True when every item has ended and was acknowledged."""
        return self.is_over and self.acknowledged.issuperset(self.job_ids)

    async def follow(
        self, after_sequence: int, beat_s: float, pause_s: float = 0.0
    ) -> AsyncGenerator[list[worker_pb2.RunEvent], None]:
        """Yields its events after the given number, heartbeats between them, up to the end.

        What is there together comes together, up to about PARCEL_BYTES; progress waits for more until `pause_s` after
        what came last.
        """
        self._followers += 1
        start = max(after_sequence, 0)
        together = self._log.follow_together(start, beat_s, self._beat, pause_s, _can_wait)
        try:
            async with contextlib.aclosing(together) as companies:
                async for events in companies:
                    for parcel in _parcels(events):
                        yield parcel
        finally:
            self._followers -= 1
            self.touched_at = time.monotonic()

    def _beat(self) -> worker_pb2.RunEvent:
        idle_s = time.monotonic() - self._progressed_at
        return worker_pb2.RunEvent(sequence=len(self._log), heartbeat=worker_pb2.Heartbeat(idle_seconds=idle_s))

    def _end(self, job_id: str) -> None:
        del self._missing[job_id]
        # Pictures that it brought: megabytes that nobody reads again.
        next(item for item in self.items if item.job_id == job_id).request.ClearField("images")
        if not self._missing:
            self.touched_at = time.monotonic()
            self._log.close()


class Shelf:
    """All runs that go on or are kept.

    Args:
        keep_s: a run that nobody follows for this long is dropped.
        keep_bytes: most output bytes of finished runs together.
    """

    def __init__(self, keep_s: float, keep_bytes: int) -> None:
        self._keep_s = keep_s
        self._keep_bytes = keep_bytes
        self._runs: OrderedDict[str, Run] = OrderedDict()
        self._past_jobs: OrderedDict[str, None] = OrderedDict()

    @property
    def runs(self) -> list[Run]:
        """Oldest first."""
        return list(self._runs.values())

    @property
    def job_ids(self) -> list[str]:
        """Items that go on or are kept."""
        return [job for run in self.runs for job in run.job_ids if job not in run.acknowledged]

    def add(self, run: Run) -> None:
        """Keeps a new run."""
        self._runs[run.run_id] = run

    def find(self, run_id: str) -> Run | None:
        """The run, or None."""
        return self._runs.get(run_id)

    def find_by_job(self, job_id: str) -> Run | None:
        """The run that has the item, or None."""
        return next((run for run in self.runs if job_id in run.job_ids), None)

    def had(self, job_id: str) -> bool:
        """True if the item was here once."""
        return job_id in self._past_jobs

    def drop(self, run: Run) -> None:
        """Forgets a run but for its items' names."""
        self._runs.pop(run.run_id, None)
        for job_id in run.job_ids:
            self._past_jobs[job_id] = None
        while len(self._past_jobs) > REMEMBERED_JOBS:
            self._past_jobs.popitem(last=False)

    def unclaimed(self, now: float) -> list[Run]:
        """Runs that nobody followed for `keep_s`, and the oldest finished ones beyond `keep_bytes`."""
        silent = [run for run in self.runs if not run.is_followed and now - run.touched_at > self._keep_s]
        excess = sum(run.kept_bytes for run in self.runs) - self._keep_bytes
        for run in self.runs:
            if excess > 0 and run.is_over and not run.is_followed and run not in silent:
                silent.append(run)
                excess -= run.kept_bytes
        return silent


def _can_wait(event: worker_pb2.RunEvent) -> bool:
    return event.HasField("progress")


def _parcels(events: Iterable[worker_pb2.RunEvent]) -> Iterator[list[worker_pb2.RunEvent]]:
    parcel: list[worker_pb2.RunEvent] = []
    for event in events:
        parcel.append(event)
        if sum(len(each.chunk.data) for each in parcel) >= PARCEL_BYTES:
            yield parcel
            parcel = []
    if parcel:
        yield parcel
