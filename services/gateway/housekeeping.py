"""Gives room back: jobs past their retention, files and pictures that no job names, what crashes and late
gateways left.

Knows nothing of how jobs or files are kept. Invariant: a file that a job names, or that a running job is about to name,
is never taken; where the store does not answer, nothing is.
"""

from __future__ import annotations

import asyncio
import contextlib
import time

from darkroom.rpc.errors import DarkroomError
from darkroom.rpc.logs import log
from services.gateway.outputs import ORPHAN_AGE_S
from services.gateway.running.resources import Resources

PAUSE_S = 60.0
# Between two looks at every file; the first one is soon after the start, because a crash may have gone before.
SWEEP_PAUSE_S = 3600.0
PAGE = 200
# A job that was taken over is looked at this much later: by then whoever had it knows, or is gone, or sleeps.
STRAY_AGE_S = 300.0
# A job that has just ended keeps its file this long, however short of room the folder is.
SPARED_S = 300.0


async def keep_house(means: Resources) -> None:
    """Looks from time to time, until cancelled."""
    sweep_at = time.monotonic() + PAUSE_S
    while True:
        with contextlib.suppress(DarkroomError, OSError):
            await expire(means)
            await drop_strays(means)
        if time.monotonic() >= sweep_at:
            with contextlib.suppress(DarkroomError, OSError):
                await sweep(means)
            sweep_at = time.monotonic() + SWEEP_PAUSE_S
        await asyncio.sleep(PAUSE_S)


async def expire(means: Resources, spared_s: float = SPARED_S) -> None:
    """Forgets jobs past their retention, by age and by size, and deletes their files."""
    settings = means.settings
    retention = settings.gateway_retention_s, PAGE, settings.gateway_retention_bytes, spared_s
    while expired := await means.jobs.expire(*retention):
        for job_id in expired:
            await means.outputs.delete(job_id)
        log.info("jobs_expired", num_jobs=len(expired))


async def drop_strays(means: Resources, age_s: float = STRAY_AGE_S) -> None:
    """Deletes what late gateways stored of jobs that were taken over at least `age_s` ago."""
    store_id = await means.outputs.open()
    while strays := await means.jobs.strays(age_s, PAGE):
        files = [claim for job_id in strays for claim in await means.outputs.claims(job_id)]
        for job_id, counter in await means.jobs.orphans(store_id, files):
            await means.outputs.delete(job_id, counter)
            log.info("stray_deleted", job_id=job_id, counter=counter)
        await means.jobs.forget_strays(strays)


async def sweep(means: Resources, age_s: float = ORPHAN_AGE_S) -> None:
    """Deletes files older than `age_s` that no job names, and what crashes left half-written."""
    outputs = means.outputs
    num_leftovers, num_orphans = await outputs.drop_leftovers(), 0
    store_id, pages = await outputs.open(), outputs.old_files(PAGE, age_s)
    while page := await asyncio.to_thread(next, pages, None):
        for job_id, counter in await means.jobs.orphans(store_id, page):
            await outputs.delete(job_id, counter)
            num_orphans += 1
    await means.inputs.sweep(means.jobs.named_inputs)
    if num_leftovers or num_orphans:
        log.info("orphans_deleted", num_files=num_orphans, num_half_written=num_leftovers)
