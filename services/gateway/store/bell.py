"""Wakes whoever waits for something in Redis to change: one subscription for the whole process.

Knows nothing of what changed: it is a hint, and every waiter also looks by itself from time to time. Invariant: a ring
after `ticket` is never missed by `wait`, except while Redis can't be reached; coming back rings everything.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Iterator

import redis.asyncio as aioredis
from redis.exceptions import RedisError

from services.gateway.store import keys

QUEUE = "q"
LEASES = "l"
DEADLINES = "d"
RECONNECT_S = 0.2


def events(job_id: str) -> str:
    """Returns the topic of a job's events."""
    return f"e:{job_id}"


def cancelling(job_id: str) -> str:
    """Returns the topic of a job that is to stop: cancelled, or past its deadline."""
    return f"c:{job_id}"


class Bell:
    """Counts the rings of the topics that somebody listens to."""

    def __init__(self, client: aioredis.Redis) -> None:
        self._client = client
        self._rings: Counter[str] = Counter()
        self._listeners: Counter[str] = Counter()
        self._changed: dict[str, asyncio.Event] = {}

    async def listen(self) -> None:
        """Hears rings until cancelled."""
        while True:
            with contextlib.suppress(RedisError, OSError):
                async with self._client.pubsub(ignore_subscribe_messages=True) as pubsub:
                    await pubsub.subscribe(keys.BELL)
                    self._ring_all()
                    while True:
                        message = await pubsub.get_message(timeout=5.0)
                        if message is not None:
                            self._ring(message["data"].decode())
            await asyncio.sleep(RECONNECT_S)

    @contextlib.contextmanager
    def topic(self, name: str) -> Iterator[Listener]:
        """Listens to a topic for as long as the block."""
        self._listeners[name] += 1
        self._changed.setdefault(name, asyncio.Event())
        try:
            yield Listener(self, name)
        finally:
            self._listeners[name] -= 1
            if not self._listeners[name]:
                for table in (self._listeners, self._rings, self._changed):
                    table.pop(name, None)  # type: ignore[attr-defined]

    def _ring(self, name: str) -> None:
        if name in self._changed:
            self._rings[name] += 1
            self._changed[name].set()
            self._changed[name] = asyncio.Event()

    def _ring_all(self) -> None:
        for name in list(self._changed):
            self._ring(name)


class Listener:
    """One waiter on one topic."""

    def __init__(self, bell: Bell, name: str) -> None:
        self._bell = bell
        self._name = name
        self._heard = bell._rings[name]

    def ticket(self) -> None:
        """Forgets what rang so far. Call before looking, so that a change between look and wait is heard."""
        self._heard = self._bell._rings[self._name]

    async def wait(self, timeout_s: float) -> bool:
        """Returns True as soon as the topic has rung since the ticket, False after the timeout."""
        if self._bell._rings[self._name] == self._heard:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await self._bell._changed[self._name].wait()
        has_rung = self._bell._rings[self._name] != self._heard
        self.ticket()
        return has_rung
