"""A connection to Redis that fails at once when the server is gone, and says whether writes survive a crash.

Knows nothing of jobs. Invariant: no exception of redis-py leaves this folder; a server that does not answer is
StoreUnavailableError.
"""

from __future__ import annotations

import contextlib
import enum
from collections.abc import Iterator

import redis.asyncio as aioredis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import BusyLoadingError, ConnectionError, ReadOnlyError, RedisError, ResponseError, TimeoutError

from darkroom.rpc.errors import InternalError, StoreUnavailableError
from services.gateway.cancellation import cancellable

ANSWER_TIMEOUT_S = 5.0
# Oldest server that the scripts were run on.
MIN_VERSION = (6, 2)


class Durability(enum.Enum):
    """How a write becomes safe before it is acknowledged."""

    EVERY_WRITE = "appendfsync always: an answer comes after the fsync"
    ON_REQUEST = "WAITAOF follows every write that must last"
    UNKNOWN = "nothing is known, the operator vouches"


def connect(url: str) -> aioredis.Redis:
    """Returns a client. redis-py retries with back-off by default, which hides a dead server for minutes: not here."""
    return aioredis.Redis.from_url(
        url,
        retry=Retry(NoBackoff(), 0),
        socket_timeout=ANSWER_TIMEOUT_S,
        socket_connect_timeout=2.0,
        protocol=2,
    )


@contextlib.contextmanager
def answered() -> Iterator[None]:
    """Turns what redis-py raises in the block into our errors.

    Raises:
        StoreUnavailableError: no answer, or the server can't take writes now.
        InternalError: the server refused what we sent.
    """
    try:
        with cancellable():
            yield
    except (ConnectionError, TimeoutError, BusyLoadingError, ReadOnlyError, OSError) as fault:
        text = f"Redis does not answer ({type(fault).__name__}); the call can be repeated"
        raise StoreUnavailableError(text, retry_after_s=1.0) from fault
    except ResponseError as fault:
        # OOM under noeviction, a failed append to the file, too few replicas: the server is up and takes no writes.
        if str(fault).startswith(("OOM", "MISCONF", "NOREPLICAS", "MASTERDOWN", "LOADING")):
            raise StoreUnavailableError(f"Redis takes no writes: {fault}", retry_after_s=5.0) from fault
        raise InternalError(f"Redis refused a command: {fault}") from fault
    except RedisError as fault:
        raise InternalError(f"Redis failed: {fault}") from fault


async def find_durability(client: aioredis.Redis, is_trusted: bool) -> Durability:
    """Asks the server how writes become safe.

    Args:
        client: connected.
        is_trusted: go on with a server that is not durable, or will not say.

    Raises:
        StoreUnavailableError: it does not answer, is too old, or would lose acknowledged jobs.
    """
    with answered():
        version = str((await client.info("server"))["redis_version"])
    if tuple(int(part) for part in version.split(".")[:2]) < MIN_VERSION:
        raise StoreUnavailableError(f"Redis {version} is too old: 6.2 or newer is needed, 7.0 or newer recommended")
    config = await _config(client)
    if config.get("appendonly") == "yes" and config.get("appendfsync") == "always":
        return Durability.EVERY_WRITE
    if config.get("appendonly", "yes") == "yes" and await _can_wait_aof(client):
        return Durability.ON_REQUEST
    if is_trusted:
        return Durability.UNKNOWN
    raise StoreUnavailableError(
        "this Redis would lose accepted jobs in a crash: set `appendonly yes` and `appendfsync always` there "
        "(or use 7.2 or newer with `appendonly yes`), or accept the loss with DARKROOM_REDIS_TRUSTED=true"
    )


async def evicts(client: aioredis.Redis) -> bool:
    """Returns True if the server would drop keys when its memory is full."""
    config = await _config(client)
    return config.get("maxmemory", "0") != "0" and config.get("maxmemory-policy", "noeviction") != "noeviction"


async def _config(client: aioredis.Redis) -> dict[str, str]:
    """Returns what CONFIG tells; managed servers forbid it, and then nothing is known."""
    try:
        config: dict[str, str] = await client.config_get("append*", "maxmemory*")  # type: ignore[assignment]
        return config
    except ResponseError:
        return {}


async def _can_wait_aof(client: aioredis.Redis) -> bool:
    try:
        await client.waitaof(1, 0, 1000)
    except ResponseError:
        return False
    return True
