"""Commands that are asked together go together, and each gets what is its own."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from redis.exceptions import RedisError, ResponseError

from darkroom.rpc.errors import StoreUnavailableError
from services.gateway.store.connection import connect
from services.gateway.store.line import Line
from tests.fakes.redis import serve_redis

# Far more than redis-py keeps connections for.
MANY = 500


async def test_hundreds_that_ask_at_once_share_one_connection_and_get_their_own_answers(tmp_path: Path) -> None:
    async with serve_redis(tmp_path) as server:
        client = connect(server.url)
        line = Line(client)
        answers = await asyncio.gather(*(line.ask("SETRANGE", f"key-{number}", number, "x") for number in range(MANY)))
        assert answers == [number + 1 for number in range(MANY)]
        assert len(await client.client_list()) == 1
        await client.aclose()


async def test_a_refused_command_fails_alone(tmp_path: Path) -> None:
    async with serve_redis(tmp_path) as server:
        client = connect(server.url)
        line = Line(client)
        good, bad, last = await asyncio.gather(
            line.ask("SET", "key", "x"), line.ask("INCR", "key"), line.ask("GET", "key"), return_exceptions=True
        )
        assert good
        assert isinstance(bad, ResponseError)
        assert last == b"x"
        await client.aclose()


async def test_everybody_who_waits_learns_that_the_server_is_gone_and_the_next_finds_it_back(tmp_path: Path) -> None:
    async with serve_redis(tmp_path) as server:
        client = connect(server.url)
        line = Line(client)
        assert await line.ask("SET", "key", "x")
        await server.kill()
        asked = (line.ask("GET", "key") for _ in range(3))
        failures = await asyncio.gather(*asked, return_exceptions=True)
        assert all(isinstance(failure, RedisError | OSError) for failure in failures)
        await server.start()
        assert await line.ask("GET", "key") == b"x"
        await client.aclose()


async def test_whoever_leaves_does_not_disturb_the_others(tmp_path: Path) -> None:
    async with serve_redis(tmp_path) as server:
        client = connect(server.url)
        line = Line(client)
        asked = [asyncio.create_task(line.ask("INCR", "count")) for _ in range(3)]
        await asyncio.sleep(0)
        asked[0].cancel()
        assert sorted(await asyncio.gather(*asked[1:])) == [2, 3]
        await client.aclose()


async def test_a_closed_line_keeps_nobody_waiting(tmp_path: Path) -> None:
    async with serve_redis(tmp_path) as server:
        client = connect(server.url)
        line = Line(client)
        asked = asyncio.create_task(line.ask("BLPOP", "never", 5))
        await asyncio.sleep(0.05)
        await line.close()
        with pytest.raises(asyncio.CancelledError):
            await asked
        await client.aclose()


async def test_what_must_last_waits_for_the_disk_and_what_is_read_does_not(tmp_path: Path) -> None:
    async with serve_redis(tmp_path, "--appendonly", "no") as server:
        client = connect(server.url)
        line = Line(client, waits_ms=100)
        read, written = await asyncio.gather(
            line.ask("GET", "key"), line.ask("SET", "key", "x", lasting=True), return_exceptions=True
        )
        assert read is None
        assert isinstance(written, StoreUnavailableError)
        await client.aclose()
