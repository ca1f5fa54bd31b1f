"""Whole jobs a second: submitted, claimed, run, their pictures committed; all waiting before the clock starts, or not.

Invariant: a job counts once it is terminal and its file is there.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import redis.asyncio as aioredis

from bench.load.asking import channels, in_flight, submissions, submitting
from bench.load.stage import Stage, shares, stage
from darkroom.v1 import job_pb2

POLL_S = 0.02
IN_FLIGHT = 32
STEPS = 4
# Affinity keeps jobs for the workers that have their model until one has waited for long: here all are to have it.
SPREADING = {"DARKROOM_GATEWAY_PATIENCE_S": "0"}
# For jobs of a second each, counted over so many seconds: after the first jobs of every worker, and while jobs still
# wait for each, so that neither the start nor the last jobs count.
SCALES = (1, 4, 16, 64)
SECONDS, MARGIN_S = 15, 2


async def measure(num_workers: int = 16, num_jobs: int = 2000) -> dict[str, Any]:
    """Returns whole jobs a second with `num_workers` workers."""
    async with _ready(num_workers) as (running, opened, client):
        call = submitting(opened, submissions(num_jobs, STEPS))
        before, began = running.cpu_s(), time.perf_counter()
        _, submit_s = await in_flight(call, num_jobs, IN_FLIGHT)
        await _finished(client, num_workers + num_jobs)
        seconds = time.perf_counter() - began
        return {
            "workers": num_workers,
            "jobs": num_jobs,
            "whole jobs a second": round(num_jobs / seconds, 1),
            "submitted within s": round(submit_s, 2),
            "files": _count_files(running),
            "cores": shares(before, running.cpu_s(), seconds),
        }


async def measure_scaling() -> dict[str, Any]:
    """Returns jobs a second with jobs of a second each, by number of workers; linear is so many times what one does."""
    found = {num_workers: await _measure_pace(num_workers) for num_workers in SCALES}
    one = found[1]["whole jobs a second"]
    return {
        f"{num_workers} workers": {**row, "of linear": round(row["whole jobs a second"] / num_workers / one, 3)}
        for num_workers, row in found.items()
    }


async def _measure_pace(num_workers: int) -> dict[str, Any]:
    async with _ready(num_workers, 1.0 / STEPS) as (running, opened, client):
        num_jobs = num_workers * (SECONDS + 2 * MARGIN_S)
        await in_flight(submitting(opened, submissions(num_jobs, STEPS)), num_jobs, IN_FLIGHT)
        first = await _finished(client, num_workers * (1 + MARGIN_S))
        before, began = running.cpu_s(), time.perf_counter()
        last = await _finished(client, num_workers * (1 + MARGIN_S + SECONDS))
        seconds = time.perf_counter() - began
        rate = (last - first) / seconds
        return {
            "jobs counted": last - first,
            "within s": round(seconds, 2),
            "whole jobs a second": round(rate, 3),
            "of one a worker and second": round(rate / num_workers, 3),
            "cores": shares(before, running.cpu_s(), seconds),
        }


@contextlib.asynccontextmanager
async def _ready(
    num_workers: int, step_s: float = 0.0
) -> AsyncIterator[tuple[Stage, list[grpc.aio.Channel], aioredis.Redis]]:
    """A gateway, connections to it and to its store, and workers that have the model, for each has made one picture."""
    with stage(num_workers, step_s, SPREADING) as running:
        client = aioredis.Redis.from_url(running.redis_url)
        try:
            async with channels(running.address) as opened:
                await in_flight(submitting(opened, submissions(num_workers)), num_workers, IN_FLIGHT)
                await _finished(client, num_workers)
                yield running, opened, client
        finally:
            await client.aclose()


async def _finished(client: aioredis.Redis, count: int) -> int:
    """Returns how many jobs have succeeded once it is `count` or more; asks the store, so that nobody has to watch."""
    key = f"darkroom:state:{job_pb2.JOB_STATE_SUCCEEDED}"
    while (found := int(await client.zcard(key))) < count:
        await asyncio.sleep(POLL_S)
    return found


def _count_files(running: Stage) -> int:
    return sum(1 for path in Path(running.data_dir / "outputs").glob("[0-9a-f][0-9a-f]/*") if path.is_file())
