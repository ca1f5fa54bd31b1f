"""A load: its plan, its events for whoever follows, and how it ended.

Knows nothing of engines. Invariant: it ends once, with a model, with a request for another plan, or with an error.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator

from darkroom.rpc.errors import DarkroomError
from darkroom.v1 import plan_pb2, worker_pb2
from services.worker.arbiter import Activity
from services.worker.event_log import EventLog


class Load(Activity):
    """One load: its plan, its events, and how it ended."""

    def __init__(self, plan: plan_pb2.Plan, *, replanned: bool) -> None:
        super().__init__()
        self.plan = plan
        self.replanned = replanned
        self.failure: DarkroomError | None = None
        self._log: EventLog[worker_pb2.LoadEvent] = EventLog()
        self._heard_at = time.monotonic()

    @property
    def is_over(self) -> bool:
        """True when it was loaded, replanned or failed."""
        return self._log.is_closed

    def record(self, event: worker_pb2.LoadEvent) -> None:
        """Keeps an event; `loaded` and `replan` end the load."""
        self._heard_at = time.monotonic()
        self._log.append(event)
        if event.WhichOneof("event") in ("loaded", "replan"):
            self._log.close()

    def fail(self, failure: DarkroomError) -> None:
        """Ends the load with an error."""
        if not self.is_over:
            self.failure = failure
            self._log.close()

    async def follow(self, beat_s: float) -> AsyncGenerator[worker_pb2.LoadEvent, None]:
        """Yields all events, heartbeats between them. Raises what the load failed with."""
        async for event in self._log.follow(0, beat_s, self._beat):
            yield event
        if self.failure is not None:
            raise self.failure

    def _beat(self) -> worker_pb2.LoadEvent:
        return worker_pb2.LoadEvent(heartbeat=worker_pb2.Heartbeat(idle_seconds=time.monotonic() - self._heard_at))
