"""Who asks: raw stubs, requests serialised before, a number of calls in flight or a rate of them.

Knows nothing of the figures. Invariant: a call that fails ends the measurement.
"""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

import grpc

from darkroom.v1 import generation_service_pb2

SUBMIT = "/darkroom.v1.GenerationService/SubmitJob"
LIST = "/darkroom.v1.GenerationService/ListJobs"
WATCH = "/darkroom.v1.GenerationService/WatchJob"
CANCEL = "/darkroom.v1.GenerationService/CancelJob"
CALL_S = 60.0

Call = Callable[[int], Awaitable[Any]]


@contextlib.asynccontextmanager
async def channels(address: str, count: int = 2) -> AsyncIterator[list[grpc.aio.Channel]]:
    """Opens connections of their own to one gateway."""
    options = (("grpc.use_local_subchannel_pool", 1),)
    opened = [grpc.aio.insecure_channel(address, options=options) for _ in range(count)]
    try:
        yield opened
    finally:
        for channel in opened:
            await channel.close()


def submissions(count: int, steps: int = 4) -> list[bytes]:
    """Returns that many different SubmitJob requests as they go over the wire."""
    requests = []
    for seed in range(count):
        request = generation_service_pb2.SubmitJobRequest(request_id=str(uuid.uuid4()))
        request.request.model, request.request.prompt = "emoji", "a red apple, 3d style"
        request.request.steps, request.request.seed = steps, seed
        requests.append(request.SerializeToString())
    return requests


def submitting(opened: Sequence[grpc.aio.Channel], requests: Sequence[bytes]) -> Call:
    """Returns what sends the submit of a number, and answers the response's bytes."""
    stubs = [channel.unary_unary(SUBMIT) for channel in opened]

    async def submit(number: int) -> bytes:
        answer: bytes = await stubs[number % len(stubs)](requests[number], timeout=CALL_S)
        return answer

    return submit


async def in_flight(call: Call, count: int, width: int) -> tuple[list[float], float]:
    """Makes `count` calls, `width` at a time; returns each one's seconds, and those of all."""
    numbers = iter(range(count))
    times: list[float] = []

    async def keep_asking() -> None:
        for number in numbers:
            began = time.perf_counter()
            await call(number)
            times.append(time.perf_counter() - began)

    began = time.perf_counter()
    await asyncio.gather(*(keep_asking() for _ in range(width)))
    return times, time.perf_counter() - began


async def at_rate(call: Call, count: int, rate: float) -> list[float]:
    """Makes calls at even distances, whether or not earlier ones have ended; returns seconds since each was due."""
    began = time.perf_counter()

    async def one(number: int) -> float:
        due = began + number / rate
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        await call(number)
        return time.perf_counter() - due

    return list(await asyncio.gather(*(one(number) for number in range(count))))


def milliseconds(times_s: Sequence[float]) -> dict[str, float]:
    """Returns median and 99th percentile in milliseconds."""
    cuts = statistics.quantiles(times_s, n=100, method="inclusive")
    return {"p50 ms": round(cuts[49] * 1000, 2), "p99 ms": round(cuts[98] * 1000, 2)}
