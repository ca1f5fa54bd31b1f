"""A real Redis for tests: the embedded one, or DARKROOM_TEST_REDIS_SERVER; it can be killed and come back."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import redis.asyncio as aioredis
from redis.exceptions import RedisError

from services.gateway.store.connection import Durability, connect
from services.gateway.store.jobs import Jobs
from services.gateway.store.scripts import Scripts
from services.gateway.store.server import find_server
from tests.fakes.gateway import redis_program


class RedisServer:
    """One server process."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._process: asyncio.subprocess.Process | None = None

    @property
    def url(self) -> str:
        return f"unix://{self._folder}/r.sock"

    async def start(self, *options: str) -> None:
        """Starts it and waits until it answers."""
        self._process = await asyncio.create_subprocess_exec(
            redis_program() or find_server(),
            *("--port", "0", "--unixsocket", str(self._folder / "r.sock"), "--dir", str(self._folder), "--save", ""),
            *("--appendonly", "yes", "--appendfsync", "always", "--maxmemory-policy", "noeviction"),
            *options,
            stdout=asyncio.subprocess.DEVNULL,
        )
        client = connect(self.url)
        while True:
            with contextlib.suppress(RedisError, OSError):
                if await client.ping():
                    break
            await asyncio.sleep(0.01)
        await client.aclose()

    async def kill(self) -> None:
        """kill -9."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()


@contextlib.asynccontextmanager
async def serve_redis(folder: Path, *options: str) -> AsyncIterator[RedisServer]:
    """Runs one for as long as the block."""
    server = RedisServer(folder)
    await server.start(*options)
    try:
        yield server
    finally:
        await server.kill()


@contextlib.asynccontextmanager
async def open_jobs(url: str) -> AsyncIterator[tuple[Jobs, aioredis.Redis]]:
    """The jobs of one server."""
    client = connect(url)
    try:
        yield Jobs(client, Scripts(client, Durability.EVERY_WRITE)), client
    finally:
        await client.aclose()
