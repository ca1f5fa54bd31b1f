"""Retained jobs: whether a thousand or a million of them change what a submit or a list costs, and their memory.

Two gateways, each with a Redis of its own, are asked in turns. Their servers keep no file while jobs are seeded; then
each writes its file whole, and nobody is asked before that is done, for a rewrite takes a core and the disk: what
submits cost meanwhile is measured last, by a rewrite of its own. Invariant: what is compared differs in nothing but the
number of ended jobs.
"""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any

import redis.asyncio as aioredis

from bench.load.asking import LIST, channels, in_flight, submissions, submitting
from bench.load.seeding import Seeder
from bench.load.stage import stage
from darkroom.v1 import generation_service_pb2, job_pb2

SIZES = (1_000, 1_000_000)
ROUNDS = 6
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
    seeded_a_second: int


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
        await client.config_set("appendonly", "no")
        began = time.monotonic()
        await Seeder(client).seed(size)
        seconds = time.monotonic() - began
        await client.config_set("appendonly", "yes")
        await _until_written(client)
        grown_bytes = await _used_bytes(client) - empty_bytes
        async with channels(running.address) as opened:
            yield Seeded(opened, client, grown_bytes // size, round(size / seconds))
        await client.aclose()


async def compare(gateways: Mapping[int, Seeded]) -> dict[str, Any]:
    """Asks each in turns, the first one last in the next round."""
    rounds: dict[int, list[dict[str, float]]] = {size: [] for size in gateways}
    order = list(gateways.items())
    for _ in range(ROUNDS):
        for size, gateway in order:
            rounds[size].append(await _ask(gateway))
        order.reverse()
    found: dict[str, Any] = {}
    for size, rows in rounds.items():
        found[f"{size} retained"] = {
            **{figure: round(statistics.median(row[figure] for row in rows), 2) for figure in rows[0]},
            "redis bytes a job, events of the last hour kept": gateways[size].bytes_a_job,
        }
    few, many = (found[f"{size} retained"] for size in (min(gateways), max(gateways)))
    found["most over fewest"] = {figure: round(many[figure] / few[figure], 3) for figure in rounds[min(gateways)][0]}
    found["most, while Redis rewrites its file"] = await _while_rewriting(gateways[max(gateways)])
    found["seeded a second"] = gateways[max(gateways)].seeded_a_second
    found["redis bytes a job, an hour later"] = await _without_events(gateways[max(gateways)].client)
    return found


async def _ask(gateway: Seeded) -> dict[str, float]:
    _, seconds = await _submit(gateway)
    stub = gateway.channels[0].unary_unary(LIST)
    request = generation_service_pb2.ListJobsRequest(page_size=PAGE, states=[job_pb2.JOB_STATE_SUCCEEDED])

    async def page(number: int) -> None:
        answer = generation_service_pb2.ListJobsResponse.FromString(await stub(request.SerializeToString(), timeout=30))
        request.page_token = answer.next_page_token

    pages, _ = await in_flight(page, NUM_PAGES, 1)
    return {"submits a second": NUM_CALLS / seconds, "a page of 50, ms": statistics.median(pages) * 1000}


async def _submit(gateway: Seeded) -> tuple[list[float], float]:
    return await in_flight(submitting(gateway.channels, submissions(NUM_CALLS)), NUM_CALLS, WIDTH)


async def _while_rewriting(gateway: Seeded) -> dict[str, float]:
    """Submits for as long as the server copies itself into a new file, in a process beside it."""
    await gateway.client.bgrewriteaof()
    began, times, rates = time.monotonic(), [], []
    while await _is_rewriting(gateway.client):
        took, seconds = await _submit(gateway)
        times += took
        rates.append(NUM_CALLS / seconds)
    info = await gateway.client.info()
    return {
        "submits a second": round(statistics.median(rates), 2),
        "longest submit, ms": round(max(times) * 1000, 1),
        "rewriting took s": round(time.monotonic() - began, 1),
        "fork stopped Redis for ms": round(info["latest_fork_usec"] / 1000, 1),
    }


async def _until_written(client: aioredis.Redis) -> None:
    """Returns once the server's file is whole."""
    while await _is_rewriting(client):
        await asyncio.sleep(0.5)
    if (await client.info("persistence"))["aof_last_bgrewrite_status"] != "ok":
        raise RuntimeError("Redis could not write its file")


async def _is_rewriting(client: aioredis.Redis) -> bool:
    found = await client.info("persistence")
    return bool(found["aof_rewrite_in_progress"] or found["aof_rewrite_scheduled"])


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
