"""Retained jobs: whether a thousand or a million of them change what a submit or a list costs, and their memory.

Two gateways, each with a Redis of its own, are asked in turns. Their servers wait for the disk while the gateways are
asked, and not while jobs are seeded. Invariant: what is compared differs in nothing but the number of ended jobs.
"""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any

import redis.asyncio as aioredis

from bench.load.asking import LIST, channels, in_flight, submissions, submitting
from bench.load.seeding import Seeder
from bench.load.stage import stage
from darkroom.v1 import generation_service_pb2, job_pb2

SIZES = (1_000, 1_000_000)
ROUNDS = 5
NUM_CALLS = 1000
WIDTH = 32
PAGE, NUM_PAGES = 50, 20
SCAN = 5000


@dataclass(frozen=True)
class Seeded:
    """A gateway with so many ended jobs."""

    channels: list[Any]
    client: aioredis.Redis
    bytes_a_job: int


async def measure(sizes: tuple[int, ...] = SIZES) -> dict[str, Any]:
    """Returns the figures at each size, and those of the largest over those of the smallest."""
    async with contextlib.AsyncExitStack() as stack:
        gateways = {size: await stack.enter_async_context(seeded(size)) for size in sizes}
        return await compare(gateways)


@contextlib.asynccontextmanager
async def seeded(size: int) -> AsyncIterator[Seeded]:
    """A gateway whose store has that many ended jobs."""
    with stage() as running:
        client = aioredis.Redis.from_url(running.redis_url)
        empty_bytes = await _used_bytes(client)
        await client.config_set("appendfsync", "no")
        await Seeder(client).seed(size)
        await client.config_set("appendfsync", "always")
        grown_bytes = await _used_bytes(client) - empty_bytes
        async with channels(running.address) as opened:
            yield Seeded(opened, client, grown_bytes // size)
        await client.aclose()


async def compare(gateways: Mapping[int, Seeded]) -> dict[str, Any]:
    """Asks each in turns."""
    rounds: dict[int, list[dict[str, float]]] = {size: [] for size in gateways}
    for _ in range(ROUNDS):
        for size, gateway in gateways.items():
            rounds[size].append(await _ask(gateway))
    found: dict[str, Any] = {}
    for size, rows in rounds.items():
        found[f"{size} retained"] = {
            **{figure: round(statistics.median(row[figure] for row in rows), 2) for figure in rows[0]},
            "redis bytes a job, events of the last hour kept": gateways[size].bytes_a_job,
        }
    few, many = (found[f"{size} retained"] for size in (min(gateways), max(gateways)))
    found["most over fewest"] = {figure: round(many[figure] / few[figure], 3) for figure in rounds[min(gateways)][0]}
    found["redis bytes a job, an hour later"] = await _without_events(gateways[max(gateways)].client)
    return found


async def _ask(gateway: Seeded) -> dict[str, float]:
    _, seconds = await in_flight(submitting(gateway.channels, submissions(NUM_CALLS)), NUM_CALLS, WIDTH)
    stub = gateway.channels[0].unary_unary(LIST)
    request = generation_service_pb2.ListJobsRequest(page_size=PAGE, states=[job_pb2.JOB_STATE_SUCCEEDED])

    async def page(number: int) -> None:
        answer = generation_service_pb2.ListJobsResponse.FromString(await stub(request.SerializeToString(), timeout=30))
        request.page_token = answer.next_page_token

    pages, _ = await in_flight(page, NUM_PAGES, 1)
    return {"submits a second": NUM_CALLS / seconds, "a page of 50, ms": statistics.median(pages) * 1000}


async def _used_bytes(client: aioredis.Redis) -> int:
    return int((await client.info("memory"))["used_memory"])


async def _without_events(client: aioredis.Redis) -> int:
    """Ends the hour for which events are kept, and returns what is left a job; those that wait count as well."""
    states = (job_pb2.JOB_STATE_QUEUED, job_pb2.JOB_STATE_SUCCEEDED)
    count = sum([await client.zcard(f"darkroom:state:{state}") for state in states])
    cursor = 0
    while True:
        cursor, keys = await client.scan(cursor, match="darkroom:events:*", count=SCAN)
        if keys:
            await client.unlink(*keys)
        if not cursor:
            return await _used_bytes(client) // count
