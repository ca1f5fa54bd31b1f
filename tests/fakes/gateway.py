"""A real gateway around the small catalogue: in this process, or its own (`python -m tests.fakes.gateway`)."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import grpc

from darkroom.rpc.channels import open_channel
from darkroom.rpc.handlers import add_servicer
from darkroom.rpc.serving import Application, Health, run_service
from darkroom.rpc.settings import load_settings
from darkroom.v1 import cluster_service_pb2_grpc, generation_service_pb2_grpc, model_service_pb2_grpc
from services.gateway.application import SERVICE_NAMES, open_gateway
from services.gateway.config import GatewaySettings
from services.gateway.servicers.model import Catalogue
from tests.fakes.catalogue import FakeCatalogue

REPO = Path(__file__).parents[2]


def redis_program() -> str | None:
    """The server that the tests run on: DARKROOM_TEST_REDIS_SERVER, or None for what the gateway finds."""
    return os.environ.get("DARKROOM_TEST_REDIS_SERVER") or None


class Stubs:
    """A client of one gateway."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.channel = open_channel(address)
        self.jobs = generation_service_pb2_grpc.GenerationServiceStub(self.channel)
        self.models = model_service_pb2_grpc.ModelServiceStub(self.channel)
        self.cluster = cluster_service_pb2_grpc.ClusterServiceStub(self.channel)


@dataclass(frozen=True)
class Gateway:
    """One that serves in this process."""

    stubs: Stubs
    application: Application
    health: Health
    settings: GatewaySettings
    server: grpc.aio.Server


@contextlib.asynccontextmanager
async def serve_gateway(settings: GatewaySettings, catalogue: Catalogue | None = None) -> AsyncIterator[Gateway]:
    """Serves in this process on a free port, around the small catalogue or another."""
    health = Health(SERVICE_NAMES)
    async with open_gateway(settings, catalogue or FakeCatalogue(), health, redis_program()) as application:
        options = [("grpc.so_reuseport", 0), ("grpc.max_receive_message_length", application.max_message_bytes)]
        server = grpc.aio.server(options=options)
        for descriptor, servicer in application.servicers:
            add_servicer(server, servicer, descriptor)
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        stubs = Stubs(f"127.0.0.1:{port}")
        try:
            yield Gateway(stubs, application, health, settings, server)
        finally:
            await stubs.channel.close()
            await server.stop(0)


class GatewayProcess:
    """One in a process of its own."""

    def __init__(self, process: asyncio.subprocess.Process, address: str, lines: asyncio.Task[None]) -> None:
        self.process = process
        self.stubs = Stubs(address)
        self._lines = lines

    def kill(self) -> None:
        """kill -9."""
        self.process.send_signal(signal.SIGKILL)

    async def stop(self) -> int:
        """SIGTERM; returns the exit code."""
        with contextlib.suppress(ProcessLookupError):
            self.process.terminate()
        return await self.process.wait()

    async def close(self) -> None:
        """Ends it if it still runs."""
        await self.stubs.channel.close()
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        await self.process.wait()
        await self._lines


async def start_gateway(settings: dict[str, str], log: Path) -> GatewayProcess:
    """Starts one with these DARKROOM_ variables and waits until it serves. Its log is appended to `log`."""
    environment = {**os.environ, "DARKROOM_GATEWAY_LISTEN": "127.0.0.1:0", **settings}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.fakes.gateway", cwd=REPO, env=environment, stderr=asyncio.subprocess.PIPE
    )
    assert process.stderr is not None
    seen = []
    while line := await process.stderr.readline():
        seen.append(line.decode())
        with contextlib.suppress(ValueError):
            event = json.loads(line)
            if event.get("event") == "serving":
                return GatewayProcess(process, event["address"], asyncio.create_task(_keep(process, log, seen)))
    raise AssertionError(f"the gateway did not start:\n{''.join(seen)}")


async def _keep(process: asyncio.subprocess.Process, log: Path, seen: list[str]) -> None:
    assert process.stderr is not None
    with log.open("a") as file:
        file.writelines(seen)
        while line := await process.stderr.readline():
            file.write(line.decode())


def main() -> None:
    """Serves until a signal arrives."""
    settings = load_settings(GatewaySettings)

    def lifespan(health: Health) -> contextlib.AbstractAsyncContextManager[Application]:
        return open_gateway(settings, FakeCatalogue(), health, redis_program())

    run_service("gateway", settings.gateway_listen, settings, SERVICE_NAMES, lifespan)


if __name__ == "__main__":
    main()
