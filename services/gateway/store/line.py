"""One connection to Redis for whatever is asked at once: commands that come together go together.

A command of its own costs a connection, two turns of the event loop and, where it must last, an fsync; a hundred in one
pipeline cost hardly more, and Redis writes them to disk with one fsync. Knows nothing of what is asked. Invariants:
commands are sent once, in the order they came; each gets its own answer or error, and a lasting one only once it is on
disk.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import redis.asyncio as aioredis
from redis.exceptions import RedisError

from darkroom.rpc.errors import StoreUnavailableError
from darkroom.rpc.serving import end_task

Argument = str | bytes | int | float
# Of one pipeline: more make the first wait for the last, and save nothing.
MOST_AT_ONCE = 256


class Line:
    """Sends commands, one pipeline after the other.

    Args:
        client: of the server.
        waits_ms: how long WAITAOF may take after lasting commands; 0 where an answer means that it is on disk.
    """

    def __init__(self, client: aioredis.Redis, waits_ms: int = 0) -> None:
        self._client = client
        self._waits_ms = waits_ms
        self._waiting: list[_Command] = []
        self._sender: asyncio.Task[None] | None = None

    async def ask(self, *arguments: Argument, lasting: bool = False) -> Any:
        """Sends a command and returns its answer, parsed as redis-py does.

        Raises:
            RedisError, OSError: what redis-py raises; without an answer the command may have been executed.
            StoreUnavailableError: it could not be made to last in time.
        """
        command = _Command(arguments, lasting and self._waits_ms > 0)
        self._waiting.append(command)
        if self._sender is None or self._sender.done():
            self._sender = asyncio.create_task(self._send_all(), name="redis-line")
        return await command.answer

    async def close(self) -> None:
        """Gives up what is under way, and what waits."""
        if self._sender is not None:
            await end_task(self._sender)
        for command in self._waiting:
            command.answer.cancel()

    async def _send_all(self) -> None:
        while self._waiting:
            batch, self._waiting = self._waiting[:MOST_AT_ONCE], self._waiting[MOST_AT_ONCE:]
            try:
                answers = await self._exchange(batch)
            except (RedisError, OSError) as fault:
                answers = [fault] * len(batch)
            except asyncio.CancelledError:
                for command in batch:
                    command.answer.cancel()
                raise
            for command, answer in zip(batch, answers, strict=True):
                command.settle(answer)

    async def _exchange(self, batch: Sequence[_Command]) -> list[Any]:
        must_wait = any(command.must_wait for command in batch)
        async with self._client.pipeline(transaction=False) as pipe:
            for command in batch:
                pipe.execute_command(*command.arguments)
            if must_wait:
                # It concerns the writes of its own connection: so it goes down this one.
                pipe.execute_command("WAITAOF", 1, 0, self._waits_ms)
            answers = await pipe.execute(raise_on_error=False)
        if must_wait and not _is_on_disk(answers.pop()):
            text = "Redis did not write to disk in time; the call can be repeated"
            late = StoreUnavailableError(text, retry_after_s=1.0)
            return [late if command.must_wait else answer for command, answer in zip(batch, answers, strict=True)]
        return answers


class _Command:
    """One command on its way."""

    def __init__(self, arguments: tuple[Argument, ...], must_wait: bool) -> None:
        self.arguments = arguments
        self.must_wait = must_wait
        self.answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def settle(self, answer: Any) -> None:
        """Hands the answer over, unless whoever asked has left."""
        if self.answer.done():
            return
        if isinstance(answer, Exception):
            self.answer.set_exception(answer)
        else:
            self.answer.set_result(answer)


def _is_on_disk(waited: Any) -> bool:
    return isinstance(waited, list) and int(waited[0]) >= 1
