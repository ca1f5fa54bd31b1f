"""Forks writers, kills each at a random moment, and prints what a reader found: run as a process of its own.

Forked children of a process without threads start in a millisecond, so that hundreds of kills take seconds.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from darkroom.storage.local import LocalStore

SIZE_BYTES = 1 << 20


def main(folder: Path, num_runs: int, seed: int) -> None:
    """Prints how often a reader found what, and how often a half-written draft was left, by way of writing."""
    chance = random.Random(seed)
    print(
        json.dumps(
            {way: _kill_many(LocalStore(folder / way), way, num_runs, chance) for way in ("create", "put", "take")}
        )
    )


def _kill_many(store: LocalStore, way: str, num_runs: int, chance: random.Random) -> dict[str, int]:
    old, new = b"o" * (SIZE_BYTES // 2), b"n" * SIZE_BYTES
    found: Counter[str] = Counter()
    duration_s = _duration_s(store, way, new)
    for number in range(num_runs):
        key = f"folder/{number}"
        if way != "create":
            store.create(key, old)
        child = _fork(lambda key=key, number=number: _write(store, way, key, number, new))
        time.sleep(chance.uniform(0, 1.3 * duration_s))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        data = store.read(key) if store.size(key) is not None else None
        found["new" if data == new else "old" if data == (None if way == "create" else old) else "torn"] += 1
    found["drafts"] = store.drop_leftovers(-1)
    return dict(found)


def _duration_s(store: LocalStore, way: str, data: bytes) -> float:
    """Returns how long a writer takes that nobody kills: the median of five."""
    spans = []
    for number in range(5):
        began_at = time.monotonic()
        os.waitpid(_fork(lambda number=number: _write(store, way, f"measured/{number}", -1 - number, data)), 0)
        spans.append(time.monotonic() - began_at)
    return sorted(spans)[2]


def _write(store: LocalStore, way: str, key: str, number: int, data: bytes) -> None:
    if way == "create":
        store.create(key, data)
        return
    draft = store.drafts / f"draft{number}"
    draft.write_bytes(data)
    (store.put_file if way == "put" else store.take_file)(key, draft)


def _fork(work: Callable[[], None]) -> int:
    child = os.fork()
    if child == 0:
        work()
        os._exit(0)
    return child


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
