"""ModelService: the catalogue, and models on workers.

Knows nothing of jobs. Invariant: a worker that a job holds is neither loaded nor unloaded here.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Protocol, TypeAlias

import grpc

from darkroom.rpc.errors import DarkroomError, InvalidRequestError, NoWorkerError
from darkroom.rpc.paging import cut_page, page_size
from darkroom.rpc.serving import owned_task
from darkroom.v1 import (
    generation_pb2,
    model_pb2,
    model_service_pb2,
    model_service_pb2_grpc,
    planner_service_pb2,
    worker_pb2,
)
from services.gateway.admission import check_preferences, kind_of
from services.gateway.running.loading import Need, ensure_loaded
from services.gateway.store.jobs import Jobs
from services.gateway.workers.client import PlannerClient
from services.gateway.workers.pool import Pool
from services.gateway.workers.seat import Seat

Context: TypeAlias = grpc.aio.ServicerContext


class Catalogue(Protocol):
    """What the gateway needs of darkroom.knowledge."""

    def message(self, name: str) -> model_pb2.Model:
        """Returns a model by name or alias. Raises UnknownModelError."""

    def messages(self) -> list[model_pb2.Model]:
        """Returns all models by name."""


class ModelServicer(model_service_pb2_grpc.ModelServiceServicer):  # type: ignore[misc]
    """Serves models."""

    def __init__(self, catalogue: Catalogue, jobs: Jobs, pool: Pool, planner: PlannerClient, lease_s: float) -> None:
        self._catalogue = catalogue
        self._jobs = jobs
        self._pool = pool
        self._planner = planner
        self._lease_s = lease_s

    async def ListModels(
        self, request: model_service_pb2.ListModelsRequest, context: Context
    ) -> model_service_pb2.ListModelsResponse:
        size = page_size(request.page_size, 100, 500)
        models = sorted(self._catalogue.messages(), key=lambda model: model.name)
        page, token = cut_page(models, lambda model: model.name, size, request.page_token, "models")
        return model_service_pb2.ListModelsResponse(models=page, next_page_token=token)

    async def GetModel(
        self, request: model_service_pb2.GetModelRequest, context: Context
    ) -> model_service_pb2.GetModelResponse:
        return model_service_pb2.GetModelResponse(model=self._find(request.model))

    async def PlanModel(
        self, request: model_service_pb2.PlanModelRequest, context: Context
    ) -> model_service_pb2.PlanModelResponse:
        model = self._find(request.model)
        check_preferences(request.preferences)
        question = planner_service_pb2.PlanRequest(model=model.name, preferences=request.preferences)
        if request.HasField("workload"):
            question.workload.CopyFrom(request.workload)
        if request.HasField("device"):
            question.device.CopyFrom(request.device)
        else:
            seat = await self._reachable(request.worker_id)
            question.device.CopyFrom(seat.device)
            question.inspection.CopyFrom(await seat.client.inspect(model.name))
        answer = await self._planner.ask(question)
        response = model_service_pb2.PlanModelResponse(device=question.device)
        if answer.HasField("plan"):
            response.plan.CopyFrom(answer.plan)
        else:
            response.no_fit.CopyFrom(answer.no_fit)
        return response

    async def LoadModel(
        self, request: model_service_pb2.LoadModelRequest, context: Context
    ) -> AsyncIterator[model_service_pb2.LoadModelResponse]:
        model = self._find(request.model)
        check_preferences(request.preferences)
        seat = await self._reachable(request.worker_id)
        kind = kind_of(generation_pb2.GenerationRequest(model=model.name, preferences=request.preferences))
        need = Need(model.name, request.preferences, None, kind)
        async with (
            self._held(seat) as token,
            contextlib.aclosing(ensure_loaded(seat, self._planner, need, token)) as events,
        ):
            async for event in events:
                yield model_service_pb2.LoadModelResponse(worker_id=seat.worker_id, event=event)

    async def UnloadModel(
        self, request: model_service_pb2.UnloadModelRequest, context: Context
    ) -> model_service_pb2.UnloadModelResponse:
        if not request.worker_id:
            raise InvalidRequestError({"worker_id": "is empty; `darkroom status` lists the workers"})
        seat = await self._reachable(request.worker_id)
        async with self._held(seat) as token:
            status = await seat.client.unload(token)
            seat.remember(status)
        return model_service_pb2.UnloadModelResponse(status=status)

    def _find(self, name: str) -> model_pb2.Model:
        if not name:
            raise InvalidRequestError({"model": "is empty; `darkroom models` lists the names"})
        return self._catalogue.message(name)

    async def _reachable(self, worker_id: str) -> Seat:
        """A worker by id, or a free one; asked just now. Raises UnknownWorkerError or NoWorkerError."""
        seat = self._pool.find(worker_id) if worker_id else self._pool.free()
        await seat.look()
        if not seat.is_reachable:
            raise NoWorkerError(f"worker {seat.worker_id} does not answer: {seat.problem}", retry_after_s=2.0)
        return seat

    @contextlib.asynccontextmanager
    async def _held(self, seat: Seat) -> AsyncIterator[worker_pb2.FencingToken]:
        """Holds a worker for an operator, as a job would. Raises WorkerHeldError."""
        token = await self._jobs.hold_worker(seat.worker_id, self._lease_s)

        async def keep() -> None:
            while True:
                await asyncio.sleep(self._lease_s / 3)
                await self._jobs.keep_worker(seat.worker_id, token, self._lease_s)

        try:
            async with owned_task(keep(), f"hold-{seat.address}"):
                yield token
        finally:
            with contextlib.suppress(DarkroomError):
                await self._jobs.keep_worker(seat.worker_id, token, 0)
