"""Errands about models and workers.

Knows nothing of jobs, nor of how a call is made or repeated. Load and unload are for operators.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence

from darkroom.client._connection import Connection
from darkroom.rpc.errors import DarkroomError
from darkroom.v1 import (
    cluster_service_pb2,
    device_pb2,
    model_pb2,
    model_service_pb2,
    plan_pb2,
    worker_pb2,
)

LOAD_S = 6 * 3600.0
UNLOAD_S = 60.0
OnLoadEvent = Callable[[str, worker_pb2.LoadEvent], None]


class ModelMethods:
    """What a client does with models and workers."""

    _connection: Connection

    async def list_models(self) -> Sequence[model_pb2.Model]:
        """Returns the catalogue by name."""
        models: list[model_pb2.Model] = []
        request = model_service_pb2.ListModelsRequest()
        while True:
            page = await self._connection.call_through_outages(self._connection.models.ListModels, request)
            models.extend(page.models)
            request.page_token = page.next_page_token
            if not page.next_page_token:
                return models

    async def get_model(self, model: str) -> model_pb2.Model:
        """Returns one model by name or alias."""
        request = model_service_pb2.GetModelRequest(model=model)
        found: model_pb2.Model = (
            await self._connection.call_through_outages(self._connection.models.GetModel, request)
        ).model
        return found

    async def plan(
        self,
        model: str,
        *,
        worker_id: str | None = None,
        device: device_pb2.Device | None = None,
        preferences: plan_pb2.PlanPreferences | None = None,
        workload: plan_pb2.Workload | None = None,
    ) -> model_service_pb2.PlanModelResponse:
        """Returns how a model would run on a worker or on a described device, or every reason why it would not."""
        request = model_service_pb2.PlanModelRequest(
            model=model, device=device, preferences=preferences, workload=workload
        )
        if worker_id is not None:
            request.worker_id = worker_id
        response: model_service_pb2.PlanModelResponse = await self._connection.call_through_outages(
            self._connection.models.PlanModel, request
        )
        return response

    async def load(
        self,
        model: str,
        *,
        worker_id: str = "",
        preferences: plan_pb2.PlanPreferences | None = None,
        on_event: OnLoadEvent | None = None,
        timeout_s: float = LOAD_S,
    ) -> worker_pb2.LoadedModel:
        """Loads a model on a worker, or on a free one, and returns what came true.

        Args:
            model: name or alias.
            worker_id: where; empty takes a free worker.
            preferences: how it should be planned.
            on_event: called with the worker's id and each event.
            timeout_s: for the whole load, a download included.
        """
        request = model_service_pb2.LoadModelRequest(model=model, worker_id=worker_id, preferences=preferences)
        stream = self._connection.stream(self._connection.models.LoadModel, request, timeout_s=timeout_s)
        loaded: worker_pb2.LoadedModel | None = None
        async with contextlib.aclosing(stream) as responses:
            async for response in responses:
                if on_event is not None:
                    on_event(response.worker_id, response.event)
                if response.event.HasField("loaded"):
                    loaded = response.event.loaded
        # The stream is read to its end, because only then has the gateway let go of the worker.
        if loaded is None:
            raise DarkroomError(f"the load of {model} ended without saying how")
        return loaded

    async def unload(self, worker_id: str) -> worker_pb2.WorkerStatus:
        """Gives a worker's memory back and returns the worker."""
        request = model_service_pb2.UnloadModelRequest(worker_id=worker_id)
        status: worker_pb2.WorkerStatus = (
            await self._connection.call(self._connection.models.UnloadModel, request, timeout_s=UNLOAD_S)
        ).status
        return status

    async def list_workers(self) -> Sequence[cluster_service_pb2.ClusterWorker]:
        """Returns every worker that the gateway looks for, each as it answered just now."""
        workers: list[cluster_service_pb2.ClusterWorker] = []
        request = cluster_service_pb2.ListWorkersRequest()
        while True:
            page = await self._connection.call_through_outages(self._connection.cluster.ListWorkers, request)
            workers.extend(page.workers)
            request.page_token = page.next_page_token
            if not page.next_page_token:
                return workers
