"""The same opening for every service: logs, server, health, reflection, signals, graceful stop.

Knows nothing of what is served. Invariant: after SIGTERM or SIGINT, health says NOT_SERVING before the last call ends,
running calls get the grace period, and the process exits 0.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass

import grpc
from google.protobuf.descriptor import ServiceDescriptor
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import aio as aio_health
from grpc_reflection.v1alpha import reflection

from darkroom.rpc.handlers import add_servicer
from darkroom.rpc.logs import configure_logs, log
from darkroom.rpc.settings import Settings

SERVER_OPTIONS = (
    ("grpc.so_reuseport", 0),
    # Clients ping at most every 60 s (see channels); a stricter server would answer GOAWAY.
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 30_000),
    ("grpc.keepalive_permit_without_calls", 1),
    # Clients behind a name re-resolve it and find new instances.
    ("grpc.max_connection_age_ms", 30 * 60_000),
    ("grpc.max_connection_age_grace_ms", 30 * 60_000),
)
MAX_CONCURRENT_CALLS = 4096


class Health:
    """Readiness per service name, as grpc.health.v1 tells it. The empty name stands for the whole process."""

    def __init__(self, names: Sequence[str]) -> None:
        self.servicer = aio_health.HealthServicer()
        self._names = tuple(names)

    async def set_ready(self, is_ready: bool, *names: str) -> None:
        """Sets the given services, or all and the process, to SERVING or NOT_SERVING."""
        kinds = health_pb2.HealthCheckResponse
        status = kinds.SERVING if is_ready else kinds.NOT_SERVING
        for name in names or ("", *self._names):
            await self.servicer.set(name, status)

    async def stop(self) -> None:
        """Sets everything to NOT_SERVING for good: later `set_ready` calls change nothing."""
        await self.servicer.enter_graceful_shutdown()


@dataclass(frozen=True)
class Application:
    """What a service's lifespan hands over to be served."""

    servicers: Sequence[tuple[ServiceDescriptor, object]]
    # Called once on the first stop signal, before the server stops; it returns when the service has drained.
    drain: Callable[[], Awaitable[None]] | None = None
    # Largest message that is read; a larger one is refused by gRPC itself.
    max_message_bytes: int = 4 * 2**20


Lifespan = Callable[[Health], contextlib.AbstractAsyncContextManager[Application]]


def run_service(name: str, listen: str, settings: Settings, service_names: Sequence[str], lifespan: Lifespan) -> None:
    """Serves until a signal arrives, then stops gracefully. Blocks.

    Args:
        name: for the log.
        listen: "127.0.0.1:50051", "[::1]:0" or "unix:/path"; port 0 takes a free one, which the log's `serving` tells.
        settings: level of the log, reflection, grace period.
        service_names: full names whose health is told.
        lifespan: opens what the servicers need, yields them, and closes it all again.
    """
    configure_logs(name, settings.log_level)
    asyncio.run(_serve(listen, settings, service_names, lifespan))


async def _serve(listen: str, settings: Settings, service_names: Sequence[str], lifespan: Lifespan) -> None:
    stop = _stop_signal()
    health = Health(service_names)
    await health.set_ready(False)
    async with lifespan(health) as application:
        server = _build_server(application, health, settings, service_names)
        port = server.add_insecure_port(listen)
        await server.start()
        address = listen if listen.startswith("unix:") else f"{listen.rpartition(':')[0]}:{port}"
        log.info("serving", address=address, settings=settings.model_dump(mode="json"))
        await stop.wait()
        log.info("stopping", grace_s=settings.grace_s)
        await health.stop()
        if application.drain is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(settings.grace_s):
                    await application.drain()
        await server.stop(settings.grace_s)
    log.info("stopped")


def _build_server(
    application: Application, health: Health, settings: Settings, service_names: Sequence[str]
) -> grpc.aio.Server:
    options = (*SERVER_OPTIONS, ("grpc.max_receive_message_length", application.max_message_bytes))
    server = grpc.aio.server(options=options, maximum_concurrent_rpcs=MAX_CONCURRENT_CALLS)
    for descriptor, servicer in application.servicers:
        add_servicer(server, servicer, descriptor)
    health_pb2_grpc.add_HealthServicer_to_server(health.servicer, server)
    if settings.reflection:
        reflected = (*service_names, health_pb2.DESCRIPTOR.services_by_name["Health"].full_name)
        reflection.enable_server_reflection((*reflected, reflection.SERVICE_NAME), server)
    return server


def _stop_signal() -> asyncio.Event:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    return stop


@contextlib.asynccontextmanager
async def owned_task(coroutine: Coroutine[None, None, None], name: str) -> AsyncIterator[asyncio.Task[None]]:
    """Runs a task for as long as the block, then cancels and awaits it."""
    task = asyncio.create_task(coroutine, name=name)
    try:
        yield task
    finally:
        await end_task(task)


async def end_task(task: asyncio.Task[None]) -> None:
    """Cancels a task and waits until it has ended; raises what it failed with.

    Not `suppress(CancelledError): await task`: that would swallow a cancellation of the caller that comes meanwhile.
    """
    is_cancelled = False
    task.cancel()
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            is_cancelled = True
    if is_cancelled:
        raise asyncio.CancelledError
    if not task.cancelled():
        task.result()
