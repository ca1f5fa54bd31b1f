"""The task as taskiq runs it: a Redis stream with acknowledgements. DARKROOM_BENCH_REDIS names the server."""

from __future__ import annotations

import os

from taskiq_redis import RedisAsyncResultBackend, RedisStreamBroker

URL = os.environ["DARKROOM_BENCH_REDIS"]

broker = RedisStreamBroker(URL).with_result_backend(RedisAsyncResultBackend(URL, result_ex_time=86400))


@broker.task(task_name="rivals.echo")
async def echo(payload: str) -> str:
    """Returns what it was given."""
    return payload
