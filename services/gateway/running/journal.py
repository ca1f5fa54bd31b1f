"""Progress on its way to the store: what comes in one burst, or while a write is under way, goes in one write.

Knows nothing of workers. Invariant: everything added is kept once and in order before `flush` returns, or
handed back by `take`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence

from darkroom.rpc.errors import DarkroomError
from darkroom.rpc.serving import end_task
from darkroom.v1 import generation_pb2
from services.gateway.store.driving import Entry

# A worker tells several steps in one burst, which arrives message by message.
GATHER_S = 0.005

Write = Callable[[Sequence[Entry]], Awaitable[None]]


class Journal:
    """One attempt's unwritten progress.

    Args:
        write: keeps entries, all or none; repeating it is harmless for entries with a sequence.
        gather_s: how long an entry waits for others, unless somebody flushes.
    """

    def __init__(self, write: Write, gather_s: float = GATHER_S) -> None:
        self._write = write
        self._gather_s = gather_s
        self._hurry = asyncio.Event()
        self._is_taken = False
        self._entries: list[Entry] = []
        self._writer: asyncio.Task[None] | None = None

    def add(self, run_sequence: int, progress: generation_pb2.Progress) -> None:
        """Takes an entry; raises what an earlier write failed with."""
        if self._writer is not None and self._writer.done():
            self._writer.result()
        self._entries.append((run_sequence, progress))
        if self._writer is None or self._writer.done():
            self._writer = asyncio.create_task(self._write_all(), name="journal")

    async def flush(self) -> None:
        """Returns when everything is kept; raises what a write failed with."""
        if self._writer is not None:
            self._hurry.set()
            await asyncio.shield(self._writer)

    async def take(self) -> Sequence[Entry]:
        """Writes no more; returns what is not written yet. Raises what a write failed with."""
        self._is_taken = True
        await self.flush()
        return self._entries

    async def close(self) -> None:
        """Gives up what is not written."""
        if self._writer is not None:
            # What it failed with was told by `add` or `flush`, or no longer matters.
            with contextlib.suppress(DarkroomError):
                await end_task(self._writer)

    async def _write_all(self) -> None:
        while self._entries:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._gather_s):
                    await self._hurry.wait()
            if self._is_taken:
                return
            entries, self._entries = self._entries, []
            await self._write(entries)
        self._hurry.clear()
