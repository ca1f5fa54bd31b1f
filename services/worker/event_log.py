"""Events in the order they happened, kept for whoever comes later.

Knows nothing of what an event is. Invariant: every follower sees each kept event once, in order, and then the end.
"""

from __future__ import annotations

import asyncio
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
        place = start
        while True:
            while place < len(self._events):
                event = self._events[place]
                place += 1
                if event is not None:
                    yield event
            if self.is_closed:
                return
            changed = self._changed
            try:
                async with asyncio.timeout(beat_s):
                    await changed.wait()
            except TimeoutError:
                # An event may have come in the very moment of the time-out; it goes first.
                if not changed.is_set() and (heartbeat := beat()) is not None:
                    yield heartbeat

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
