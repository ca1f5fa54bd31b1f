"""The task as celery runs it. DARKROOM_BENCH_REDIS names the server.

Acknowledged late, so that a lost worker loses no task: what Darkroom promises.
"""

from __future__ import annotations

import os

from celery import Celery  # type: ignore[import-untyped]

URL = os.environ["DARKROOM_BENCH_REDIS"]

app = Celery("rivals", broker=URL, backend=URL)
app.conf.update(
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    task_track_started=True,
    worker_prefetch_multiplier=1,
    broker_connection_retry_on_startup=True,
    result_expires=86400,
)


@app.task(name="rivals.echo")
def echo(payload: str) -> str:
    """Returns what it was given."""
    return payload
