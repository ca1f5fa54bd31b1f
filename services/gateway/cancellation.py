"""Keeps asyncio cancellations that a library swallows.

Two do, as of 2026: grpc.aio 1.85 (the task inside a unary call returns normally when it was just finishing) and, under
Python 3.11, asyncio.wait_for, which redis-py 8.1 sends commands through. A loop around such a call would never end.
Delete this when Python 3.12 is the oldest and grpc.aio raises.

Knows nothing of either library. Invariant: a task that was cancelled in the block leaves it with CancelledError.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator


@contextlib.contextmanager
def cancellable() -> Iterator[None]:
    """Raises asyncio's CancelledError at the end of the block if the task was cancelled in it."""
    task = asyncio.current_task()
    before = task.cancelling() if task is not None else 0
    try:
        yield
    except Exception as failure:
        if task is not None and task.cancelling() > before:
            raise asyncio.CancelledError from failure
        raise
    if task is not None and task.cancelling() > before:
        raise asyncio.CancelledError
