"""A wire that can be cut, stalled and slowed down: a small TCP proxy on loopback.

Knows nothing of what passes. Invariant: while it is cut or stalled, not a byte passes in either direction.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

PIECE_BYTES = 64 * 1024


class Link:
    """A wire to one address.

    Args:
        target: gives the port to connect to, at the moment of connecting.
    """

    def __init__(self, target: Callable[[], int]) -> None:
        self.port = 0
        self.delay_s = 0.0
        self._target = target
        self._is_cut = False
        self._flows = asyncio.Event()
        self._answers_flow = asyncio.Event()
        self._flows.set()
        self._answers_flow.set()
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def address(self) -> str:
        """What to connect to instead."""
        return f"127.0.0.1:{self.port}"

    async def open(self) -> None:
        """Begins to listen."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    def cut(self) -> None:
        """Resets every connection and refuses new ones."""
        self._is_cut = True
        for writer in list(self._writers):
            writer.transport.abort()

    def stall(self) -> None:
        """Holds all bytes back; connections stand. What a packet filter that drops everything looks like."""
        self._flows.clear()

    def stall_answers(self) -> None:
        """Holds back only what the far end says: what was sent arrives, and nobody learns of it."""
        self._answers_flow.clear()

    def heal(self) -> None:
        """Is a good wire again; what was held back goes on."""
        self._is_cut, self.delay_s = False, 0.0
        self._flows.set()
        self._answers_flow.set()

    async def close(self) -> None:
        """Ends all connections."""
        if self._server is not None:
            self._server.close()
        for writer in list(self._writers):
            writer.transport.abort()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._writers.add(writer)
        try:
            await self._flows.wait()
            if not self._is_cut:
                await self._join(reader, writer)
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            writer.transport.abort()
            self._writers.discard(writer)
            self._tasks.discard(task)

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._target())
        self._writers.add(far_writer)
        pumps = [
            asyncio.create_task(self._pump(reader, far_writer, self._flows)),
            asyncio.create_task(self._pump(far_reader, writer, self._answers_flow)),
        ]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
            far_writer.transport.abort()
            self._writers.discard(far_writer)

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, gate: asyncio.Event) -> None:
        with contextlib.suppress(OSError):
            while piece := await reader.read(PIECE_BYTES):
                if self.delay_s:
                    await asyncio.sleep(self.delay_s)
                await self._flows.wait()
                await gate.wait()
                writer.write(piece)
                await writer.drain()
