"""What keeps the jobs' database in order: retention, orphaned files, whose outputs these are, whether it answers.

Knows nothing of how files are kept. Invariant: what a live job needs is never given away.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import redis.asyncio as aioredis

from darkroom.v1 import generation_pb2, job_pb2
from services.gateway.store import keys
from services.gateway.store.connection import answered
from services.gateway.store.scripts import Scripts
from services.gateway.store.vocabulary import to_ms

# States of jobs that name a file, or are about to: the one of their newest claim.
NAMING = (b"%d" % job_pb2.JOB_STATE_RUNNING, b"%d" % job_pb2.JOB_STATE_SUCCEEDED)
# Requests that are read at once.
NAMED_PAGE = 500


class Upkeep:
    """The housekeeper's part of the jobs."""

    _client: aioredis.Redis
    _scripts: Scripts

    async def expire(
        self, retention_s: float, count: int, most_bytes: int = 0, spared_s: float = float("inf")
    ) -> list[str]:
        """Forgets ended jobs, the oldest first; returns their ids.

        Args:
            retention_s: jobs that ended longer ago are forgotten.
            count: most jobs.
            most_bytes: while outputs take more than this, younger ones are forgotten too; 0: never.
            spared_s: ended jobs that are younger than this and than `retention_s` stay in any case.
        """
        spared_ms = to_ms(min(spared_s, retention_s))
        answer = await self._scripts.call("expire", to_ms(retention_s), count, most_bytes, spared_ms, lasting=True)
        return [job_id.decode() for job_id in answer]

    async def orphans(self, folder: str, files: Sequence[tuple[str, int]]) -> list[tuple[str, int]]:
        """Returns those of `files`, each a job and the counter of a claim, that no job names or can still name.

        Whoever has another folder than these jobs gets none, and files from before this database was made are never
        among them.
        """
        with answered():
            async with self._client.pipeline(transaction=True) as pipe:
                pipe.mget(keys.OUTPUTS, keys.SINCE)
                for job_id, _ in files:
                    pipe.hmget(keys.job(job_id), "state", "token")
                (name, since_ms), *records = await pipe.execute()
        if name is None or name.decode() != folder or since_ms is None:
            return []
        oldest = f"{int(since_ms):012x}"
        return [
            (job_id, counter)
            for (job_id, counter), (state, token) in zip(files, records, strict=True)
            if job_id >= oldest and (state not in NAMING or int(token) != counter)
        ]

    async def strays(self, age_s: float, count: int) -> dict[str, int]:
        """Returns up to `count` jobs that were taken over at least `age_s` ago, with when that was, in server ms."""
        with answered():
            seconds, microseconds = await self._client.time()
            last_ms = seconds * 1000 + microseconds // 1000 - to_ms(age_s)
            found: list[tuple[bytes, float]] = await self._client.zrange(  # type: ignore[assignment]
                keys.STRAYS, 0, last_ms, byscore=True, offset=0, num=count, withscores=True
            )
        return {job_id.decode(): int(taken_ms) for job_id, taken_ms in found}

    async def forget_strays(self, strays: Mapping[str, int]) -> None:
        """Forgets what `strays` returned, but for jobs that were taken over anew."""
        await self._scripts.call("forget_strays", *(part for pair in strays.items() for part in pair))

    async def named_inputs(self) -> set[str]:
        """Returns the SHA-256 of every picture that a waiting, a running or a dead job's request names."""
        states = [keys.in_state(state) for state in (job_pb2.JOB_STATE_QUEUED, job_pb2.JOB_STATE_RUNNING)]
        named: set[str] = set()
        with answered():
            # In one step, so that a job that moves from one to another is in one of them.
            async with self._client.pipeline(transaction=True) as pipe:
                for key in (*states, keys.DEAD):
                    pipe.zrange(key, 0, -1)
                ids = [job_id.decode() for listed in await pipe.execute() for job_id in listed]
            for start in range(0, len(ids), NAMED_PAGE):
                async with self._client.pipeline(transaction=False) as pipe:
                    for job_id in ids[start : start + NAMED_PAGE]:
                        pipe.hget(keys.job(job_id), "request")
                    requests = await pipe.execute()
                for data in filter(None, requests):
                    named |= {image.sha256 for image in generation_pb2.GenerationRequest.FromString(data).images}
        return named

    async def register_outputs(self, name: str) -> str:
        """Names the output folder of these jobs; returns the name that was first."""
        with answered():
            seconds, microseconds = await self._client.time()
            await self._client.set(keys.SINCE, seconds * 1000 + microseconds // 1000, nx=True)
            await self._client.set(keys.OUTPUTS, name, nx=True)
            first: bytes = await self._client.get(keys.OUTPUTS)  # type: ignore[assignment]
        return first.decode()

    async def ping(self) -> None:
        """Raises StoreUnavailableError if the server does not answer."""
        with answered():
            await self._client.ping()

    async def abandon_all_leases(self) -> None:
        """Makes every running job adoptable at once. Only for whoever knows that no other gateway is alive."""
        with answered():
            running: list[bytes] = await self._client.zrange(keys.LEASES, 0, -1)  # type: ignore[assignment]
            if running:
                await self._client.zadd(keys.LEASES, dict.fromkeys(running, 0), xx=True)
