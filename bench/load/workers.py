"""Many workers in one process: `python -m bench.load.workers COUNT STEP_S` prints their addresses and serves.

Each is a real server of WorkerService on a port of its own, the one that the gateway's tests use; its engine paints
hashes. Invariant: what the gateway sees of a worker goes over a socket.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys

from darkroom.v1 import device_pb2
from tests.fakes.worker import FakeWorker, serve_worker

GIB = 2**30


class RoomyWorker(FakeWorker):
    """On a processor with room for what the real planner plans."""

    def _device(self) -> device_pb2.Device:
        memory = device_pb2.DeviceMemory(total_bytes=16 * GIB, free_bytes=15 * GIB, host_free_bytes=15 * GIB)
        kind = device_pb2.DEVICE_KIND_CPU
        return device_pb2.Device(id="cpu", kind=kind, name="imaginary", has_unified_memory=True, memory=memory)


async def _serve(count: int, step_s: float) -> None:
    async with contextlib.AsyncExitStack() as stack:
        servers = [
            await stack.enter_async_context(serve_worker(RoomyWorker(f"load-{number}", step_s)))
            for number in range(count)
        ]
        print(",".join(server.address for server in servers), flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_serve(int(sys.argv[1]), float(sys.argv[2])))
