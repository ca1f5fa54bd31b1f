"""Open WatchJob streams on one gateway: how many, what an idle one costs, and how soon all hear of a change.

Every stream watches a job that waits. Invariant: a stream counts once its first message is there, and only while it is
open.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

import grpc

from bench.load.asking import CANCEL, WATCH, channels, in_flight, milliseconds, submissions, submitting
from bench.load.stage import shares, stage
from darkroom.v1 import generation_service_pb2, job_pb2

NUM_STREAMS = 2000
NUM_CHANNELS = 40
OPENING = 64
IDLE_S = 5.0
# Jobs that are cancelled while all streams are open: their watchers must hear of it.
NUM_CHANGES = 200


async def measure(num_streams: int = NUM_STREAMS) -> dict[str, Any]:
    """Returns how the streams opened, what they cost while nothing happens, and how long a change took to arrive."""
    with stage() as running:
        async with channels(running.address, NUM_CHANNELS) as opened:
            job_ids = await _submit(opened, num_streams)
            before_bytes = running.gateway.memory_info().rss
            watchers = [_Watcher(opened[number % NUM_CHANNELS], job_id) for number, job_id in enumerate(job_ids)]
            opening, open_s = await in_flight(lambda number: watchers[number].open(), num_streams, OPENING)
            memory_bytes = running.gateway.memory_info().rss - before_bytes
            following = [asyncio.create_task(watcher.follow()) for watcher in watchers]
            before, began = running.cpu_s(), time.perf_counter()
            await asyncio.sleep(IDLE_S)
            idle = shares(before, running.cpu_s(), time.perf_counter() - began)
            num_open = sum(not task.done() for task in following)
            heard_s = await _change(opened[0], watchers[:NUM_CHANGES])
            for task in following:
                task.cancel()
            await asyncio.gather(*following, return_exceptions=True)
        return {
            "streams open": num_open,
            "opened in s": round(open_s, 2),
            "opening one": milliseconds(opening),
            "cores while nothing happens": idle,
            "gateway's bytes a stream": memory_bytes // num_streams,
            "from cancel to watcher": milliseconds(heard_s),
        }


class _Watcher:
    """One stream."""

    def __init__(self, channel: grpc.aio.Channel, job_id: str) -> None:
        self.job_id = job_id
        self.ended = asyncio.get_running_loop().create_future()
        self._stub = channel.unary_stream(WATCH)
        self._call: Any = None

    async def open(self) -> None:
        """Returns with the first message."""
        request = generation_service_pb2.WatchJobRequest(job_id=self.job_id)
        self._call = self._stub(request.SerializeToString())
        await self._call.read()

    async def follow(self) -> None:
        """Reads until the job has ended."""
        while True:
            answer = generation_service_pb2.WatchJobResponse.FromString(await self._call.read())
            if answer.event.job.state == job_pb2.JOB_STATE_CANCELLED:
                self.ended.set_result(time.perf_counter())
                return


async def _submit(opened: list[Any], count: int) -> list[str]:
    submit = submitting(opened, submissions(count))
    job_ids: list[str] = []

    async def one(number: int) -> None:
        answer = generation_service_pb2.SubmitJobResponse.FromString(await submit(number))
        job_ids.append(answer.job.id)

    await in_flight(one, count, OPENING)
    return job_ids


async def _change(channel: grpc.aio.Channel, watchers: list[_Watcher]) -> list[float]:
    """Cancels jobs, one after the other; returns how long each watcher took to hear of it."""
    stub = channel.unary_unary(CANCEL)
    took_s = []
    for watcher in watchers:
        began = time.perf_counter()
        await stub(generation_service_pb2.CancelJobRequest(job_id=watcher.job_id).SerializeToString(), timeout=10)
        took_s.append(await asyncio.wait_for(watcher.ended, 10) - began)
    return took_s
