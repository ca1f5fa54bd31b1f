"""The jobs: every step of their lives, one script each.

Knows nothing of workers' addresses or RPCs. Invariants: what returns is on disk; a stale token changes nothing.
"""

from __future__ import annotations

import secrets

import redis.asyncio as aioredis

from services.gateway.store.asking import Asking
from services.gateway.store.driving import Driving
from services.gateway.store.scripts import Scripts
from services.gateway.store.upkeep import Upkeep
from services.gateway.store.vocabulary import Bounds, Setback, Wish

__all__ = ["Bounds", "Jobs", "Setback", "Wish"]


class Jobs(Asking, Driving, Upkeep):
    """The jobs of one Redis."""

    def __init__(self, client: aioredis.Redis, scripts: Scripts) -> None:
        self._client = client
        self._scripts = scripts
        # Taken by the first claim of a new database; every gateway offers one.
        self._store_candidate = secrets.token_hex(8)
