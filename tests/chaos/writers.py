"""Writers of one output that are killed at random moments: `python -m tests.chaos.writers FOLDER SEED ROUNDS`.

Prints a line a round: how many bytes the writer had taken when it was killed, and what a reader found then. Its own
program, because it forks, and nothing that forks may run gRPC's threads. Invariant: a round is over when its writer is.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import random
import signal
import sys
import time
from pathlib import Path

from darkroom.storage import open_store
from darkroom.v1 import generation_pb2, worker_pb2
from services.gateway.outputs import Outputs

JOB_ID = "0123456789ab" + "c" * 12
# Between two pieces, so that there is time to be killed in.
PACE_S = 0.0005
PIECE_BYTES = 16 * 1024
OLD = b"old" * 50_000
NEW = b"new!" * 100_000


def main(folder: Path, seed: int, rounds: int) -> None:
    """Writes OLD once, then has NEW written over it by writers that die."""
    outputs, dice = Outputs(open_store(folder)), random.Random(seed)
    asyncio.run(outputs.open())
    asyncio.run(write(outputs, OLD, -1))
    longest_s = _time_of_one(outputs)
    for number in range(rounds):
        asyncio.run(write(outputs, OLD, -1))
        told, tells = os.pipe()
        writer = os.fork()
        if not writer:
            asyncio.run(write(outputs, NEW, tells))
            os._exit(0)
        os.close(tells)
        # Half of them while pieces come, half at any time, which is mostly while the file is put in its place.
        time.sleep(dice.uniform(0, 40 * PACE_S if number % 2 else 1.5 * longest_s))
        os.kill(writer, signal.SIGKILL)
        os.waitpid(writer, 0)
        with os.fdopen(told, "rb") as pipe:
            taken = PIECE_BYTES * len(pipe.read())
        found = (folder / JOB_ID[-2:] / f"{JOB_ID}-1").read_bytes()
        print(taken, {OLD: "old", NEW: "new"}.get(found, f"{len(found)} other bytes"), flush=True)


async def write(outputs: Outputs, data: bytes, tells: int) -> None:
    """Writes a file as a gateway does; says a byte into `tells` after every piece."""
    draft = outputs.draft(JOB_ID, 1)
    for offset in range(0, len(data), PIECE_BYTES):
        draft.write(worker_pb2.OutputChunk(offset=offset, data=data[offset : offset + PIECE_BYTES]))
        if tells >= 0:
            os.write(tells, b".")
            time.sleep(PACE_S)
    await draft.commit(generation_pb2.Output(size_bytes=len(data), sha256=hashlib.sha256(data).hexdigest()))


def _time_of_one(outputs: Outputs) -> float:
    began_at = time.monotonic()
    for _ in range(3):
        writer = os.fork()
        if not writer:
            asyncio.run(write(outputs, NEW, -1))
            os._exit(0)
        os.waitpid(writer, 0)
    return (time.monotonic() - began_at) / 3


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
