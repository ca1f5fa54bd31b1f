"""The scripts in Redis against a small model of what they promise, step by step, with the clock in the test's hand.

The scripts have one clock function, in `prelude.lua`; here it reads a key instead of the server's time.
"""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.errors import Flaky
from hypothesis.stateful import run_state_machine_as_test
from redis.exceptions import RedisError

from services.gateway.store.connection import connect
from services.gateway.store.scripts import FOLDER
from services.gateway.store.server import find_server
from tests.chaos.store_model import StoreModel
from tests.fakes.gateway import redis_program

pytestmark = [pytest.mark.redis, pytest.mark.timeout(300)]
LIMITS = settings(
    max_examples=60,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    print_blob=False,
    database=None,
)
REAL_CLOCK = """
  local time = redis.call('TIME')
  return tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
"""


@pytest.fixture(scope="module")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server that keeps nothing."""
    path = tmp_path_factory.mktemp("redis") / "s"
    command = [redis_program() or find_server(), "--port", "0", "--unixsocket", str(path), "--save", ""]
    server = subprocess.Popen(command, cwd=path.parent, stdout=subprocess.DEVNULL)
    try:
        asyncio.run(_answers(f"unix://{path}"))
        yield f"unix://{path}"
    finally:
        server.terminate()
        server.wait()


async def _answers(url: str) -> None:
    client = connect(url)
    async with asyncio.timeout(30):
        while True:
            try:
                await client.ping()
                break
            except (RedisError, OSError):
                await asyncio.sleep(0.02)
    await client.aclose()


@pytest.fixture(scope="module")
def clocked_scripts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The scripts, with the one clock function replaced."""
    folder = tmp_path_factory.mktemp("lua")
    for path in FOLDER.glob("*.lua"):
        text = path.read_text()
        if path.stem == "prelude":
            assert text.count(REAL_CLOCK) == 1
            text = text.replace(REAL_CLOCK, "\n  return tonumber(redis.call('GET', 'clock'))\n")
        assert "'TIME'" not in text, f"{path.name} reads the time past now_ms"
        (folder / path.name).write_text(text)
    return folder


@pytest.mark.parametrize(
    ("name", "guard", "without"),
    [
        ("prelude", "if held[2] ~= token then return 'stale' end", ""),
        ("prelude", "redis.call('ZREM', P .. 'leases', id)", ""),
        ("adopt", "'-inf', whole(now_ms())", "'-inf', '+inf'"),
        ("claim", "if #answer >= 4 + 2 * room then break end", ""),
    ],
)
def test_the_model_notices_a_script_without_its_guard(
    redis_url: str, clocked_scripts: Path, tmp_path: Path, name: str, guard: str, without: str
) -> None:
    for path in clocked_scripts.glob("*.lua"):
        text = path.read_text()
        if path.stem == name:
            assert guard in text
            text = text.replace(guard, without)
        (tmp_path / path.name).write_text(text)
    limits = settings(LIMITS, max_examples=600, phases=[Phase.generate], report_multiple_bugs=False, database=None)
    with pytest.raises((AssertionError, pytest.fail.Exception, Flaky)):
        run_state_machine_as_test(lambda: StoreModel(redis_url, tmp_path), settings=limits)


def test_the_scripts_keep_their_promises_in_any_order_of_events(redis_url: str, clocked_scripts: Path) -> None:
    run_state_machine_as_test(lambda: StoreModel(redis_url, clocked_scripts), settings=LIMITS)
