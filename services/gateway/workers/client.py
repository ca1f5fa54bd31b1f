"""Calls to one worker, and to the planner: RPC failures become our errors here, and nowhere else.

Knows nothing of jobs' states. Invariant: a failure that the peer did not word itself is a lost peer.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncGenerator, Iterator

import grpc
from grpc_status import rpc_status

from darkroom.rpc.channels import open_channel
from darkroom.rpc.errors import DarkroomError, NoPlannerError, UnavailableError, WorkerLostError
from darkroom.rpc.status import from_rpc_error
from darkroom.v1 import (
    planner_service_pb2,
    planner_service_pb2_grpc,
    worker_pb2,
    worker_service_pb2,
    worker_service_pb2_grpc,
)
from services.gateway.cancellation import cancellable

ANSWER_TIMEOUT_S = 5.0
# A plan is a pure computation of milliseconds.
PLAN_TIMEOUT_S = 10.0
# Inspecting may walk a cache of many files.
INSPECT_TIMEOUT_S = 30.0
UNLOAD_TIMEOUT_S = 60.0
# Longer than the pause of a worker whose jobs needed a planner in vain: Seat's MAX_PENALTY_S and a call.
PROBLEM_KEPT_S = 20.0

Token = worker_pb2.FencingToken


class WorkerClient:
    """One worker at one address."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._channel = open_channel(address)
        self._stub = worker_service_pb2_grpc.WorkerServiceStub(self._channel)

    async def close(self) -> None:
        """Ends the connection."""
        await self._channel.close()

    async def status(self) -> worker_pb2.WorkerStatus:
        """Asks what it is doing."""
        with self._translated():
            answer: worker_service_pb2.GetStatusResponse = await self._stub.GetStatus(
                worker_service_pb2.GetStatusRequest(), timeout=ANSWER_TIMEOUT_S
            )
        return answer.status

    async def inspect(self, model: str, limit_s: float | None = None) -> worker_pb2.Inspection:
        """Asks what its machine knows of a model, for at most `limit_s`."""
        with self._translated():
            request = worker_service_pb2.InspectRequest(model=model)
            answer: worker_service_pb2.InspectResponse = await self._stub.Inspect(
                request, timeout=_shorter(INSPECT_TIMEOUT_S, limit_s)
            )
        return answer.inspection

    async def load(
        self, request: worker_service_pb2.LoadRequest, limit_s: float | None = None
    ) -> AsyncGenerator[worker_pb2.LoadEvent, None]:
        """Loads; yields what happens, for at most `limit_s`."""
        with self._translated():
            call = self._stub.Load(request, timeout=limit_s)
            try:
                async for answer in call:
                    yield answer.event
            finally:
                call.cancel()

    async def generate(
        self, request: worker_service_pb2.WorkerServiceGenerateRequest, limit_s: float | None = None
    ) -> AsyncGenerator[worker_pb2.RunEvent, None]:
        """Starts a run or re-attaches to one; yields its events, for at most `limit_s`. Leaving it does not stop it."""
        with self._translated():
            call = self._stub.Generate(request, timeout=limit_s)
            try:
                async for answer in call:
                    yield answer.event
                    for event in answer.more:
                        yield event
            finally:
                call.cancel()

    async def acknowledge(self, job_id: str, token: Token) -> None:
        """Lets it forget an item."""
        with self._translated():
            request = worker_service_pb2.AckOutputRequest(job_id=job_id, token=token)
            await self._stub.AckOutput(request, timeout=ANSWER_TIMEOUT_S)

    async def cancel(self, job_id: str) -> None:
        """Stops an item at its next step."""
        with self._translated():
            await self._stub.Cancel(worker_service_pb2.CancelRequest(job_id=job_id), timeout=ANSWER_TIMEOUT_S)

    async def unload(self, token: Token) -> worker_pb2.WorkerStatus:
        """Gives its memory back."""
        with self._translated():
            request = worker_service_pb2.UnloadRequest(token=token)
            answer: worker_service_pb2.UnloadResponse = await self._stub.Unload(request, timeout=UNLOAD_TIMEOUT_S)
        return answer.status

    def _translated(self) -> contextlib.AbstractContextManager[None]:
        return _translated(WorkerLostError, f"worker {self.address}")


class PlannerClient:
    """The planner."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._channel = open_channel(address)
        self._stub = planner_service_pb2_grpc.PlannerServiceStub(self._channel)
        self._problem = ""
        self._failed_at = 0.0

    async def close(self) -> None:
        """Ends the connection."""
        await self._channel.close()

    async def ask(
        self, request: planner_service_pb2.PlanRequest, limit_s: float | None = None
    ) -> planner_service_pb2.PlanResponse:
        """Returns a plan or "nothing fits", within `limit_s`. Raises NoPlannerError, or what the planner says."""
        try:
            with _translated(NoPlannerError, f"planner {self._address}"):
                timeout_s = _shorter(PLAN_TIMEOUT_S, limit_s)
                answer: planner_service_pb2.PlanResponse = await self._stub.Plan(request, timeout=timeout_s)
        except NoPlannerError as gone:
            self._problem, self._failed_at = gone.message, time.monotonic()
            raise
        self._problem = ""
        return answer

    @property
    def problem(self) -> str:
        """Why it did not answer when it was last asked; "" where it did, or nobody asked for a while."""
        return self._problem if time.monotonic() - self._failed_at < PROBLEM_KEPT_S else ""


def _shorter(own_s: float, limit_s: float | None) -> float:
    return own_s if limit_s is None else min(own_s, limit_s)


@contextlib.contextmanager
def _translated(lost: type[UnavailableError], peer: str) -> Iterator[None]:
    """Raises failed calls in the block as our errors."""
    with cancellable():
        try:
            yield
        except grpc.RpcError as failure:
            raise translate(failure, lost, peer) from failure


def translate(failure: grpc.RpcError, lost: type[UnavailableError], peer: str) -> DarkroomError:
    """Returns what a peer said, or `lost` where the transport said it instead."""
    if isinstance(failure, grpc.aio.UsageError) or not isinstance(failure, grpc.aio.AioRpcError):
        return lost(f"{peer} can't be called: {failure}")
    if rpc_status.from_call(failure) is None and failure.code() is not grpc.StatusCode.UNIMPLEMENTED:
        return lost(f"{peer} does not answer: {failure.code().name}, {failure.details()}", peer=peer)
    return from_rpc_error(failure)
