"""The way to the gateways: one channel, its stubs, a deadline on every call, our errors, and patience with outages.

Knows nothing of what jobs and models are. Invariant: every failure that leaves here is a `DarkroomError`.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from functools import cached_property
from typing import Any, TypeVar

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_status import rpc_status

from darkroom.client._address import to_target
from darkroom.rpc.channels import open_channel
from darkroom.rpc.errors import DarkroomError, PreconditionError, UnavailableError
from darkroom.rpc.status import from_rpc_error
from darkroom.v1 import cluster_service_pb2_grpc, generation_service_pb2_grpc, model_service_pb2_grpc

T = TypeVar("T")
# Another gateway, or the same one a little later, can answer these; other failures are answers.
BRIDGED_REASONS = ("UNAVAILABLE", "DRAINING", "STORE_UNAVAILABLE", "OUTPUTS_UNAVAILABLE")
TENANT_KEY = "x-darkroom-tenant"
FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 2.0


class Connection:
    """One channel to one or more gateways. Opened by its first call, on the loop that makes it."""

    def __init__(self, address: str, timeout_s: float, patience_s: float, tenant: str = "") -> None:
        self.address = address
        self.timeout_s = timeout_s
        self.patience_s = patience_s
        self.has_answered = False
        self._metadata = ((TENANT_KEY, tenant),) if tenant else ()
        self._target = to_target(address)
        self._is_closed = False

    @cached_property
    def _channel(self) -> grpc.aio.Channel:
        if self._is_closed:
            raise PreconditionError("this client is closed; make a new one")
        return open_channel(self._target)

    @cached_property
    def generation(self) -> generation_service_pb2_grpc.GenerationServiceStub:
        return generation_service_pb2_grpc.GenerationServiceStub(self._channel)

    @cached_property
    def models(self) -> model_service_pb2_grpc.ModelServiceStub:
        return model_service_pb2_grpc.ModelServiceStub(self._channel)

    @cached_property
    def cluster(self) -> cluster_service_pb2_grpc.ClusterServiceStub:
        return cluster_service_pb2_grpc.ClusterServiceStub(self._channel)

    async def call(self, method: Any, request: Any, *, timeout_s: float | None = None) -> Any:
        """Makes one unary call, once.

        Raises:
            DarkroomError: as the gateway said, or `UnavailableError` where none answered.
        """
        async with self._answered():
            timeout_s = self.timeout_s if timeout_s is None else timeout_s
            return await method(request, timeout=timeout_s, metadata=self._metadata)

    async def call_through_outages(self, method: Any, request: Any) -> Any:
        """Makes one unary call that is safe to repeat, and repeats it while no gateway answers."""
        outage = self.outage()
        while True:
            try:
                return await self.call(method, request)
            except DarkroomError as error:
                await outage.wait(error)

    async def stream(self, method: Any, request: Any, *, timeout_s: float) -> AsyncGenerator[Any, None]:
        """Yields the messages of one server stream; leaving it early ends the call."""
        async with self._answered():
            call = method(request, timeout=timeout_s, metadata=self._metadata)
            try:
                async for message in call:
                    self.has_answered = True
                    yield message
            finally:
                call.cancel()

    async def is_ready(self) -> bool:
        """Tells whether the gateway says that it can take work."""
        stub = health_pb2_grpc.HealthStub(self._channel)
        answer = await self.call(stub.Check, health_pb2.HealthCheckRequest())
        return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)

    def outage(self) -> Outage:
        """Returns the patience for one operation. A gateway that never answered gets none: the address may be wrong."""
        return Outage(lambda: self.patience_s if self.has_answered else 0.0)

    async def close(self) -> None:
        """Ends calls under way and closes the channel."""
        self._is_closed = True
        if "_channel" in self.__dict__:
            await self._channel.close()

    @contextlib.asynccontextmanager
    async def _answered(self) -> AsyncIterator[None]:
        try:
            yield
            self.has_answered = True
        except grpc.aio.AioRpcError as failure:
            error = from_rpc_error(failure)
            if _is_silence(failure):
                error = UnavailableError(f"no gateway answers at {self.address}: {_short(failure)}")
            else:
                self.has_answered = True
            raise error from failure
        except grpc.aio.UsageError as closed:
            raise PreconditionError("this client is closed; make a new one") from closed


class Outage:
    """Counts how long no gateway has answered, and pauses between attempts.

    Args:
        patience_s: asked at each failure: seconds from the first one until the failure is final.
    """

    def __init__(self, patience_s: Callable[[], float]) -> None:
        self._patience_s = patience_s
        self.end()

    def end(self) -> None:
        """Starts counting afresh: somebody answered."""
        self._since: float | None = None
        self._pause_s = FIRST_PAUSE_S

    async def wait(self, error: DarkroomError) -> None:
        """Sleeps before the next attempt, or raises `error` where another attempt would not help."""
        now = time.monotonic()
        self._since = now if self._since is None else self._since
        if error.reason not in BRIDGED_REASONS or now - self._since >= self._patience_s():
            raise error
        pause_s = self._pause_s * random.uniform(0.8, 1.2) if error.retry_after_s is None else error.retry_after_s
        self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)
        left_s = self._patience_s() - (now - self._since)
        await asyncio.sleep(min(pause_s, left_s))


def _is_silence(failure: grpc.aio.AioRpcError) -> bool:
    """True where the transport failed: a gateway's own refusal carries details."""
    return failure.code() is grpc.StatusCode.UNAVAILABLE and rpc_status.from_call(failure) is None


def _short(failure: grpc.aio.AioRpcError) -> str:
    """gRPC's texts go on for lines; the last part is the cause: "Connection refused"."""
    text = str(failure.details() or failure.code().name)
    return text.rpartition(": ")[2][:200]
