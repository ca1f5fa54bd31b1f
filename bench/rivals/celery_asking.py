"""`python -m bench.rivals.celery_asking COUNT WIDTH submit|whole`: seconds for so many tasks, from `WIDTH` threads."""

from __future__ import annotations

import sys
import time
from concurrent.futures import ThreadPoolExecutor

from bench.rivals import PAYLOAD, WARM_UP
from bench.rivals.celery_tasks import echo

RESULT_S = 120.0


def ask(count: int, width: int, *, waits: bool) -> float:
    """Returns the seconds until all are accepted, or done."""
    with ThreadPoolExecutor(width) as pool:
        began = time.perf_counter()
        results = list(pool.map(lambda _: echo.delay(PAYLOAD), range(count)))
        if waits:
            for result in results:
                result.get(timeout=RESULT_S)
        return time.perf_counter() - began


if __name__ == "__main__":
    count, width, waits = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "whole"
    ask(WARM_UP, width, waits=waits)
    print(ask(count, width, waits=waits))
