"""A planner and a worker of the gates' own: started as processes, asked over gRPC, ended with the block.

So a checkpoint is loaded and run by the very code that will serve it. Knows nothing of checkpoints or verdicts.
Invariants: both processes are gone when the block is left; a failure of either is one of our errors.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import grpc

from darkroom.rpc.channels import open_channel
from darkroom.rpc.child_service import ChildService, running_service
from darkroom.rpc.errors import NothingFitsError, UnavailableError, error_from_message
from darkroom.rpc.logs import log
from darkroom.rpc.status import from_rpc_error
from darkroom.v1 import plan_pb2, planner_service_pb2, worker_pb2, worker_service_pb2
from darkroom.v1.planner_service_pb2_grpc import PlannerServiceStub
from darkroom.v1.worker_service_pb2_grpc import WorkerServiceStub
from services.checkpoint_builder.config import REPOSITORY

START_S, STOP_S, CALL_S = 180.0, 15.0, 30.0


@dataclass(frozen=True)
class Services:
    """A planner and a worker that answer."""

    planner: PlannerServiceStub
    worker: WorkerServiceStub

    async def status(self) -> worker_pb2.WorkerStatus:
        """Returns the worker's status once it has read its device. Raises DarkroomError."""
        with _told():
            answer = await self.worker.GetStatus(worker_service_pb2.GetStatusRequest(), timeout=CALL_S)
        status: worker_pb2.WorkerStatus = answer.status
        return status

    async def inspect(self, model: str) -> worker_pb2.Inspection:
        """Returns what the machine has of a model. Raises DarkroomError."""
        with _told():
            request = worker_service_pb2.InspectRequest(model=model)
            answer = await self.worker.Inspect(request, timeout=CALL_S)
        inspection: worker_pb2.Inspection = answer.inspection
        return inspection

    async def plan(self, request: planner_service_pb2.PlanRequest) -> plan_pb2.Plan:
        """Returns the plan. Raises DarkroomError; NothingFitsError with what comes nearest."""
        with _told():
            answer: planner_service_pb2.PlanResponse = await self.planner.Plan(request, timeout=CALL_S)
        if answer.HasField("plan"):
            return answer.plan
        nearest = next((item.reason.sentence for item in answer.no_fit.candidates), "no candidate")
        raise NothingFitsError(f"{request.model} does not fit this device: {nearest}")

    async def load(
        self, request: planner_service_pb2.PlanRequest, adjust: Callable[[plan_pb2.Plan], None] = lambda plan: None
    ) -> worker_pb2.LoadedModel:
        """Plans and loads, planning once more where the worker's own reading asks for it. Raises DarkroomError.

        Args:
            request: to the planner.
            adjust: changes a plan before it is loaded.
        """
        for is_replanned in (False, True):
            plan = await self.plan(request)
            adjust(plan)
            call = worker_service_pb2.LoadRequest(plan=plan, replanned=is_replanned)
            with _told():
                async for answer in self.worker.Load(call):
                    event: worker_pb2.LoadEvent = answer.event
                    if event.HasField("loaded"):
                        return event.loaded
                    if event.HasField("replan"):
                        request.device.memory.CopyFrom(event.replan.device.memory)
        raise UnavailableError("the worker loaded nothing")

    async def paint(self, run_id: str, model: str, items: Sequence[worker_pb2.RunItem]) -> AsyncIterator[bytes]:
        """Makes pictures and yields each file as it is finished, in order. Raises DarkroomError."""
        data = bytearray()
        size = -1
        call = worker_service_pb2.WorkerServiceGenerateRequest(run_id=run_id, items=items, model=model)
        with _told():
            async for answer in self.worker.Generate(call):
                event = answer.event
                if event.HasField("error"):
                    raise error_from_message(event.error)
                if event.HasField("output"):
                    size = event.output.size_bytes
                elif event.HasField("chunk"):
                    data += event.chunk.data
                if len(data) == size:
                    yield bytes(data)
                    data.clear()
                    size = -1
                    await self._acknowledge(event.job_id)

    async def _acknowledge(self, job_id: str) -> None:
        await self.worker.AckOutput(worker_service_pb2.AckOutputRequest(job_id=job_id), timeout=CALL_S)


@contextlib.asynccontextmanager
async def running_services(environment: Mapping[str, str], folder: Path) -> AsyncIterator[Services]:
    """Starts both; their logs go to `folder`. Raises UnavailableError."""
    async with contextlib.AsyncExitStack() as stack:
        channels = []
        for name, variable in (("planner", "DARKROOM_PLANNER_LISTEN"), ("worker", "DARKROOM_WORKER_LISTEN")):
            running = _running(name, variable, environment, folder / f"{name}.log")
            service = await stack.enter_async_context(running)
            channels.append(await stack.enter_async_context(open_channel(service.address)))
        yield Services(PlannerServiceStub(channels[0]), WorkerServiceStub(channels[1]))


@contextlib.asynccontextmanager
async def _running(
    name: str, variable: str, environment: Mapping[str, str], log_path: Path
) -> AsyncIterator[ChildService]:
    paths = [str(REPOSITORY), *filter(None, [os.environ.get("PYTHONPATH")])]
    variables = {**environment, "PYTHONPATH": os.pathsep.join(paths)}
    silence = UnavailableError(f"the gates' own {name} did not come up; the builder's log has its last words")
    module, limits = f"services.{name}", {"start_s": START_S, "stop_s": STOP_S}
    try:
        async with running_service(module, variable, silence, variables, log_path, **limits) as service:
            yield service
    except UnavailableError as failure:
        if failure is silence:
            log.error("gate_service_missing", name=name, words=silence.__notes__)
        raise


@contextlib.contextmanager
def _told() -> Iterator[None]:
    try:
        yield
    except grpc.aio.AioRpcError as failure:
        raise from_rpc_error(failure) from failure
