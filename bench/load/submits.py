"""Submits a second, each on disk before OK, by how many are in flight: the knee; and how long they take at half of it.

No worker answers, so that nothing else is done. Invariant: every submit made a job of its own.
"""

from __future__ import annotations

from typing import Any

from bench.load.asking import at_rate, channels, in_flight, milliseconds, submissions, submitting
from bench.load.stage import Stage, shares, stage

WIDTHS = (1, 4, 16, 64, 256)
SECONDS = 4.0
# Of the bar, for how many calls one width makes.
EXPECTED_A_SECOND = 800
WARM_UP = 200


async def measure() -> dict[str, Any]:
    """Returns throughput and latency by width, and latency at half of the best throughput."""
    with stage() as running:
        found: dict[str, Any] = {}
        async with channels(running.address) as opened:
            await in_flight(submitting(opened, submissions(WARM_UP)), WARM_UP, 16)
            for width in WIDTHS:
                found[f"{width} in flight"] = await _at_width(running, opened, width)
            best = max(row["submits a second"] for row in found.values())
            found["half of the best"] = await _at_half(opened, best)
        return {"best submits a second": best, **found}


async def _at_width(running: Stage, opened: list[Any], width: int) -> dict[str, Any]:
    count = max(200, int(SECONDS * EXPECTED_A_SECOND * min(1.0, width / 16)))
    call = submitting(opened, submissions(count))
    before = running.cpu_s()
    times, seconds = await in_flight(call, count, width)
    return {
        "submits a second": round(count / seconds, 1),
        **milliseconds(times),
        "cores": shares(before, running.cpu_s(), seconds),
    }


async def _at_half(opened: list[Any], best: float) -> dict[str, float]:
    count = int(SECONDS * best / 2)
    times = await at_rate(submitting(opened, submissions(count)), count, best / 2)
    return {"submits a second": round(best / 2, 1), **milliseconds(times)}
