"""The jobs: every step of their lives, one script each.

Knows nothing of workers' addresses or RPCs. Invariants: what returns is on disk; a stale token changes nothing.
"""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Callable

import redis.asyncio as aioredis

from services.gateway.store.asking import Asking
from services.gateway.store.driving import Driving
from services.gateway.store.scripts import Scripts
from services.gateway.store.upkeep import Upkeep
from services.gateway.store.vocabulary import Bounds, Setback, Wish

__all__ = ["Bounds", "Jobs", "Setback", "Wish"]


def count_suffixes() -> Callable[[], str]:
    """Returns what makes the second halves of ids, twelve hexadecimal digits: six that count up from a random start, so
    that jobs which arrive here in one millisecond keep their order, and six random ones."""
    count = itertools.count(secrets.randbits(24))
    return lambda: f"{next(count) % (1 << 24):06x}{secrets.token_hex(3)}"


class Jobs(Asking, Driving, Upkeep):
    """The jobs of one Redis.

    Args:
        client: of the server.
        scripts: that run there.
        make_suffix: gives the second half of each new job's id, twelve hexadecimal digits.
    """

    def __init__(
        self,
        client: aioredis.Redis,
        scripts: Scripts,
        make_suffix: Callable[[], str] | None = None,
    ) -> None:
        self._client = client
        self._scripts = scripts
        self._make_suffix = make_suffix or count_suffixes()
        # Taken by the first claim of a new database; every gateway offers one.
        self._store_candidate = secrets.token_hex(8)

    async def close(self) -> None:
        """Gives up what is under way; its outcome is unknown to whoever asked for it."""
        await self._scripts.line.close()
