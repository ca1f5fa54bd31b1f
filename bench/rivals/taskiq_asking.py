"""`python -m bench.rivals.taskiq_asking COUNT WIDTH submit|whole`: seconds for so many tasks, `WIDTH` at a time."""

from __future__ import annotations

import asyncio
import sys
import time

from bench.rivals import PAYLOAD, WARM_UP
from bench.rivals.taskiq_tasks import broker, echo

RESULT_S = 120.0
LOOK_S = 0.02


async def ask(count: int, width: int, *, waits: bool) -> float:
    """Returns the seconds until all are accepted, or done."""
    numbers = iter(range(count))
    tasks = []

    async def keep_asking() -> None:
        for _ in numbers:
            tasks.append(await echo.kiq(PAYLOAD))

    began = time.perf_counter()
    await asyncio.gather(*(keep_asking() for _ in range(width)))
    if waits:
        for task in tasks:
            await task.wait_result(check_interval=LOOK_S, timeout=RESULT_S)
    return time.perf_counter() - began


async def _main(count: int, width: int, *, waits: bool) -> None:
    await broker.startup()
    await ask(WARM_UP, width, waits=waits)
    print(await ask(count, width, waits=waits))
    await broker.shutdown()


if __name__ == "__main__":
    asyncio.run(_main(int(sys.argv[1]), int(sys.argv[2]), waits=sys.argv[3] == "whole"))
