"""A whole stack beside the engine in this process, both with FLUX.1 dev at full size and random weights.

Knows nothing of the stack's parts. Invariant: the two take turns, with the same request.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from typing import Any

from bench.device.engine import RANDOM, EngineHere, Figures
from bench.running import running_stack
from darkroom.client import AsyncClient
from darkroom.v1 import device_pb2, plan_pb2

MODEL = "flux.1-dev"
WISHES = {"scheme": device_pb2.SCHEME_NONE, "source": RANDOM}
DEADLINE_S = 150.0


def measure(engine: EngineHere, device: str, pairs: int, **request: Any) -> Figures:
    """Returns seconds of a picture through the stack and in this process, and their ratio.

    Args:
        engine: in this process.
        device: of the stack's worker.
        pairs: of pictures, after one of each.
        request: size, steps, guidance.
    """
    figures = engine.load(engine.plan(MODEL, **WISHES))
    with running_stack({"DARKROOM_WORKER_DEVICE": device}) as stack:
        return figures | asyncio.run(_alternate(engine, stack["gateway"]["address"], pairs, request))


async def _alternate(engine: EngineHere, address: str, pairs: int, request: dict[str, Any]) -> Figures:
    here, through, inside = [], [], []
    async with AsyncClient(address) as client:
        for seed in range(pairs + 1):
            fields = {"model": MODEL, "prompt": "a lighthouse at dusk", "seed": seed, **request}
            here.append((await asyncio.to_thread(lambda fields=fields: engine.paint(**fields))).seconds)
            began = time.perf_counter()
            wishes = plan_pb2.PlanPreferences(**WISHES)
            made = await client.generate(**fields, preferences=wishes, allows_constant=True, deadline_s=DEADLINE_S)
            through.append(time.perf_counter() - began)
            inside.append(made.output.engine_time.ToNanoseconds() / 1e9)
    here_s, through_s = statistics.median(here[1:]), statistics.median(through[1:])
    return {
        "here_s": round(here_s, 3),
        "through_the_stack_s": round(through_s, 3),
        "in_its_engine_s": round(statistics.median(inside[1:]), 3),
        "first_job_s": round(through[0], 1),
        "ratio": round(through_s / here_s, 4),
        "pairs": pairs,
    }
