"""Events in the order they happened, kept for whoever comes later.

Knows nothing of what an event is. Invariant: every follower sees each kept event once, in order, and then the end.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Callable
from typing import Generic, TypeVar

Event = TypeVar("Event")


class EventLog(Generic[Event]):
    """Appended by one, followed by many, at any point."""

    def __init__(self) -> None:
        self._events: list[Event | None] = []
        self._changed = asyncio.Event()
        self.is_closed = False

    def __len__(self) -> int:
        return len(self._events)

    def append(self, event: Event) -> None:
        """Adds an event and wakes the followers."""
        self._events.append(event)
        self._wake()

    def close(self) -> None:
        """Ends the log: followers get what is left, and then the end."""
        self.is_closed = True
        self._wake()

    def forget(self, is_forgotten: Callable[[Event], bool]) -> None:
        """Frees the events that `is_forgotten` picks; the others keep their places."""
        self._events = [None if event is None or is_forgotten(event) else event for event in self._events]

    async def follow(
        self, start: int, beat_s: float, beat: Callable[[], Event | None] = lambda: None
    ) -> AsyncGenerator[Event, None]:
        """Yields kept events from place `start` on, then new ones as they come, until the log is closed.

        Args:
            start: place of the first event wanted; 0 is the first of all.
            beat_s: after a silence of this many seconds `beat()` is yielded, unless it is None.
            beat: makes a heartbeat.
        """
        async with contextlib.aclosing(self.follow_together(start, beat_s, beat)) as companies:
            async for events in companies:
                for event in events:
                    yield event

    async def follow_together(
        self,
        start: int,
        beat_s: float,
        beat: Callable[[], Event | None] = lambda: None,
        pause_s: float = 0.0,
        can_wait: Callable[[Event], bool] = lambda event: False,
    ) -> AsyncGenerator[list[Event], None]:
        """As `follow`, but yields what is there at once.

        Args:
            start: as in `follow`.
            beat_s: as in `follow`.
            beat: as in `follow`.
            pause_s: events that all can wait do so until this many seconds after the last ones.
            can_wait: tells whether an event may.
        """
        place, told_at = start, float("-inf")
        while True:
            events = [event for event in self._events[place:] if event is not None]
            left_s = told_at + pause_s - time.monotonic()
            if events and left_s > 0 and not self.is_closed and all(map(can_wait, events)):
                await self._has_changed(left_s)
            elif events:
                place, told_at = len(self._events), time.monotonic()
                yield events
            elif self.is_closed:
                return
            # An event may have come in the very moment of the time-out; it goes first.
            elif not await self._has_changed(beat_s) and (heartbeat := beat()) is not None:
                yield [heartbeat]

    async def _has_changed(self, limit_s: float) -> bool:
        """Waits for an event or the end, at most so long; returns whether one came."""
        changed = self._changed
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                await changed.wait()
        return changed.is_set()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
