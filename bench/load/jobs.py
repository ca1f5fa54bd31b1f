"""Whole jobs a second: submitted, claimed, run, their pictures committed; all waiting before the clock starts, or not.

Invariant: a job counts once it is terminal and its file is there.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import redis.asyncio as aioredis

from bench.load.asking import channels, in_flight, submissions, submitting
from bench.load.stage import Stage, shares, stage
from darkroom.v1 import job_pb2

POLL_S = 0.02
IN_FLIGHT = 32
STEPS = 4
# Affinity keeps jobs for the workers that have their model until one has waited for long: here all are to have it.
SPREADING = {"DARKROOM_GATEWAY_PATIENCE_S": "0"}
# For jobs of a second each.
SCALES = (1, 4, 16, 64)
SECONDS_EACH = 6


async def measure(num_workers: int = 16, num_jobs: int = 2000, step_s: float = 0.0) -> dict[str, Any]:
    """Returns whole jobs a second with `num_workers` workers."""
    with stage(num_workers, step_s, SPREADING) as running:
        client = aioredis.Redis.from_url(running.redis_url)
        async with channels(running.address) as opened:
            # One each, so that every worker has the model.
            await in_flight(submitting(opened, submissions(num_workers)), num_workers, IN_FLIGHT)
            await _finished(client, num_workers)
            call = submitting(opened, submissions(num_jobs, STEPS))
            before, began = running.cpu_s(), time.perf_counter()
            _, submit_s = await in_flight(call, num_jobs, IN_FLIGHT)
            await _finished(client, num_workers + num_jobs)
            seconds = time.perf_counter() - began
            cores = shares(before, running.cpu_s(), seconds)
        await client.aclose()
        return {
            "workers": num_workers,
            "jobs": num_jobs,
            "whole jobs a second": round(num_jobs / seconds, 1),
            "submitted within s": round(submit_s, 2),
            "files": _count_files(running),
            "cores": cores,
        }


async def measure_scaling() -> dict[str, Any]:
    """Returns jobs a second with jobs of a second each, by number of workers; linear is one job a worker a second."""
    found = {}
    for num_workers in SCALES:
        row = await measure(num_workers, num_workers * SECONDS_EACH, 1.0 / STEPS)
        found[f"{num_workers} workers"] = {**row, "of linear": round(row["whole jobs a second"] / num_workers, 3)}
    return found


async def _finished(client: aioredis.Redis, count: int) -> None:
    """Returns once that many jobs have succeeded; looks at the store, so that nobody has to watch."""
    key = f"darkroom:state:{job_pb2.JOB_STATE_SUCCEEDED}"
    while await client.zcard(key) < count:
        await asyncio.sleep(POLL_S)


def _count_files(running: Stage) -> int:
    return sum(1 for path in Path(running.data_dir / "outputs").glob("[0-9a-f][0-9a-f]/*") if path.is_file())
