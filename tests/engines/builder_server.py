"""A real checkpoint builder as a child process, and calls to it.

Knows nothing of pytest. Invariant: `serve_builder` leaves no process behind.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from darkroom.rpc.channels import open_channel
from darkroom.rpc.child_service import running_service
from darkroom.v1 import build_pb2, checkpoint_pb2
from darkroom.v1 import checkpoint_builder_service_pb2 as messages
from darkroom.v1.checkpoint_builder_service_pb2_grpc import CheckpointBuilderServiceStub

START_S, STOP_S, CALL_S, BUILD_S = 60.0, 30.0, 20.0, 110.0


@dataclass
class BuilderServer:
    """A running builder."""

    process: asyncio.subprocess.Process
    address: str
    stub: CheckpointBuilderServiceStub
    log_path: Path

    async def submit(self, order: build_pb2.BuildOrder, request_id: str = "") -> build_pb2.Build:
        """Queues a build."""
        request = messages.BuildRequest(order=order, request_id=request_id or str(uuid.uuid4()))
        return (await self.stub.Build(request, timeout=CALL_S)).build

    async def watch(self, build_id: str) -> list[build_pb2.Build]:
        """Returns every state that was told, the terminal one last."""
        request = messages.WatchBuildRequest(build_id=build_id)
        return [answer.build async for answer in self.stub.WatchBuild(request, timeout=BUILD_S)]

    async def build(self, order: build_pb2.BuildOrder) -> build_pb2.Build:
        """Builds to the end."""
        return (await self.watch((await self.submit(order)).id))[-1]

    async def checkpoints(self, *, every: bool = False) -> list[checkpoint_pb2.Checkpoint]:
        """Lists the store."""
        request = messages.ListCheckpointsRequest(includes_unlisted=every)
        return list((await self.stub.ListCheckpoints(request, timeout=CALL_S)).checkpoints)

    def kill(self) -> None:
        """Ends it, and what it started, without any farewell."""
        self.process.send_signal(signal.SIGKILL)


@contextlib.asynccontextmanager
async def serve_builder(data_dir: Path, **variables: object) -> AsyncIterator[BuilderServer]:
    """Starts `python -m services.checkpoint_builder` on a free port; `variables` are environment variables."""
    log_path = data_dir / f"builder-{uuid.uuid4().hex[:6]}.log"
    environment = {
        "DARKROOM_DATA_DIR": str(data_dir),
        "DARKROOM_BUILDER_DEVICE": "cpu",
        # Of two cores shared with other tests: spinning threads would wait for each other.
        "DARKROOM_BUILDER_THREADS": "1",
        **{name: str(value) for name, value in variables.items()},
    }
    silence = RuntimeError("the builder did not come up")
    module, listen = "services.checkpoint_builder", "DARKROOM_BUILDER_LISTEN"
    running = running_service(module, listen, silence, environment, log_path, start_s=START_S, stop_s=STOP_S)
    async with running as service, open_channel(service.address) as channel:
        yield BuilderServer(service.process, service.address, CheckpointBuilderServiceStub(channel), log_path)
