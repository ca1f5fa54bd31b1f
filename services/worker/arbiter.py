"""Who may use the device, and when.

`Fence` decides by token who holds the worker; `Slot` lets one activity at a time have the device and stops the others
when a newer one must have it. Neither knows of engines, plans or clocks of its own.
Invariants: a token lower than the newest of its store is never admitted again, released or not; two activities never
hold the slot together, and each stands in line before the one that makes room is asked to stop.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
from collections.abc import AsyncIterator, Callable

from darkroom.rpc.errors import DarkroomError, StaleTokenError, WorkerHeldError
from darkroom.v1 import worker_pb2


class Admission(enum.Enum):
    """How a caller relates to who held the worker before."""

    ANONYMOUS = "no token, and none is held"
    SAME = "the holder's own token"
    NEWER = "a higher counter of the same store, or nobody held it"
    NEW_STORE = "a token of another store: what the old store holds ends"


class Fence:
    """The token that holds the worker, and the newest one ever seen.

    Args:
        hold_s: a holder that is silent for this long, with no activity, loses the worker.
        now: a monotonic clock in seconds.
    """

    def __init__(self, hold_s: float, now: Callable[[], float]) -> None:
        self._hold_s = hold_s
        self._now = now
        self._newest: worker_pb2.FencingToken | None = None
        self._is_held = False
        self._heard_at = 0.0

    @property
    def holder(self) -> worker_pb2.FencingToken | None:
        """Who holds the worker; None when nobody does."""
        return self._newest if self._is_held else None

    def check(self, token: worker_pb2.FencingToken | None) -> Admission:
        """Tells how `token` would be admitted; changes nothing.

        Raises:
            WorkerHeldError: no token, but one is held.
            StaleTokenError: a newer claim was seen.
        """
        newest = self._newest
        if token is None:
            if self._is_held and newest is not None:
                name = f"{newest.store_id}/{newest.counter}"
                raise WorkerHeldError(f"claim {name} holds this worker; wait until it is done", holder=name)
            return Admission.ANONYMOUS
        if newest is None:
            return Admission.NEWER
        if token.store_id != newest.store_id:
            return Admission.NEW_STORE
        if token.counter < newest.counter:
            text = f"claim {token.counter} is stale: {newest.counter} was seen"
            raise StaleTokenError(text, counter=token.counter, newest_counter=newest.counter)
        return Admission.SAME if token.counter == newest.counter else Admission.NEWER

    def admit(self, token: worker_pb2.FencingToken | None) -> Admission:
        """Lets `token` hold the worker from now on. Raises as `check`."""
        admission = self.check(token)
        if token is not None:
            self._newest = worker_pb2.FencingToken()
            self._newest.CopyFrom(token)
            self._is_held = True
            self.touch()
        return admission

    def touch(self) -> None:
        """The holder was heard, or its activity goes on."""
        self._heard_at = self._now()

    def release(self) -> None:
        """Nobody holds the worker any more. The newest token still fences older ones off."""
        self._is_held = False

    def release_if_silent(self) -> None:
        """Releases a holder that was not heard for `hold_s`."""
        if self._is_held and self._now() - self._heard_at > self._hold_s:
            self.release()


class Activity:
    """Something that wants the device: a load, a run, an unload. `stop` asks it to end at its next boundary."""

    def __init__(self) -> None:
        self.stopped: DarkroomError | None = None
        # Set by whoever executes the activity while the engine works on it.
        self.on_stop: Callable[[], None] | None = None

    def stop(self, why: DarkroomError) -> None:
        """Asks the activity to end with `why`; the first reason counts."""
        if self.stopped is None:
            self.stopped = why
            if self.on_stop is not None:
                self.on_stop()


class Slot:
    """One device: one activity has it, the others wait in order."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._in_line: list[Activity] = []

    @property
    def is_busy(self) -> bool:
        """True while an activity has the device or waits for it."""
        return bool(self._in_line)

    def stop_all(self, why: DarkroomError, *, but: Activity | None = None) -> None:
        """Asks every activity that has the device or waits for it to end with `why`."""
        for activity in list(self._in_line):
            if activity is not but:
                activity.stop(why)

    def join(self, activity: Activity) -> None:
        """Puts the activity in line; it counts as in flight from here. Follow with `turn`."""
        self._in_line.append(activity)

    @contextlib.asynccontextmanager
    async def turn(self, activity: Activity) -> AsyncIterator[None]:
        """Waits until the activity has the device, and gives it up at the end of the block."""
        try:
            async with self._lock:
                yield
        finally:
            self._in_line.remove(activity)
