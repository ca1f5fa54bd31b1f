"""Ends items of a run when nobody wants them any more.

Knows nothing of who set a deadline, or by which clock: an item brings the time that it has left. Invariant: it is kept
whether or not anybody follows the run.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator

from services.worker.runs import Run


@contextlib.contextmanager
def deadlines(run: Run, end: Callable[[str], None]) -> Iterator[None]:
    """Calls `end` with the name of each item whose time is over before it has ended, while the block lasts."""
    loop = asyncio.get_running_loop()

    def expire(job_id: str) -> None:
        if not run.has_ended(job_id):
            end(job_id)

    timers = [
        loop.call_later(max(0.0, item.time_left.ToNanoseconds() / 1e9), expire, item.job_id)
        for item in run.items
        if item.HasField("time_left")
    ]
    try:
        yield
    finally:
        for timer in timers:
            timer.cancel()
