"""The jobs: every step of their lives, one script each.

Knows nothing of workers' addresses or RPCs. Invariants: what returns is on disk; a stale token changes nothing.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from functools import partial

import redis.asyncio as aioredis

from services.gateway.store.asking import Asking
from services.gateway.store.driving import Driving
from services.gateway.store.scripts import Scripts
from services.gateway.store.upkeep import Upkeep
from services.gateway.store.vocabulary import Bounds, Setback, Wish

RANDOM_SUFFIX = partial(secrets.token_hex, 6)

__all__ = ["Bounds", "Jobs", "Setback", "Wish"]


class Jobs(Asking, Driving, Upkeep):
    """The jobs of one Redis.

    Args:
        client: of the server.
        scripts: that run there.
        make_suffix: gives the second half of each new job's id, twelve hexadecimal digits; random where absent.
    """

    def __init__(
        self,
        client: aioredis.Redis,
        scripts: Scripts,
        make_suffix: Callable[[], str] = RANDOM_SUFFIX,
    ) -> None:
        self._client = client
        self._scripts = scripts
        self._make_suffix = make_suffix
        # Taken by the first claim of a new database; every gateway offers one.
        self._store_candidate = secrets.token_hex(8)

    async def close(self) -> None:
        """Gives up what is under way; its outcome is unknown to whoever asked for it."""
        await self._scripts.line.close()
