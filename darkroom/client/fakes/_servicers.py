"""The fake gateway's servicers: decode, call, encode.

Errors become statuses as in the real services, by `darkroom.rpc.status`. Invariant: no exception leaves as UNKNOWN.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from darkroom.client._connection import TENANT_KEY
from darkroom.client.fakes._admission import find_model
from darkroom.rpc.errors import DarkroomError, InvalidRequestError, NoOutputError, OffsetError, UnsupportedError
from darkroom.rpc.status import to_status
from darkroom.v1 import (
    cluster_service_pb2,
    cluster_service_pb2_grpc,
    generation_service_pb2,
    generation_service_pb2_grpc,
    job_pb2,
    model_service_pb2,
    model_service_pb2_grpc,
    worker_pb2,
)

if TYPE_CHECKING:
    from darkroom.client.fakes._gateway import FakeGateway

CHUNK_BYTES = 256 * 1024
DEFAULT_PAGE_SIZE = 50
MAX_PAGE_SIZE = 500


class GenerationFake(generation_service_pb2_grpc.GenerationServiceServicer):
    """Jobs in memory."""

    def __init__(self, gateway: FakeGateway) -> None:
        self._gateway = gateway

    async def SubmitJob(self, request, context):  # type: ignore[no-untyped-def]
        async with _answered(self._gateway, context):
            job = self._gateway.submit(request.request, request.request_id, request.terms, _tenant(context))
            return generation_service_pb2.SubmitJobResponse(job=job.record)

    async def GetJob(self, request, context):  # type: ignore[no-untyped-def]
        async with _answered(self._gateway, context):
            return generation_service_pb2.GetJobResponse(job=self._gateway.find_job(request.job_id).record)

    async def ListJobs(self, request, context):  # type: ignore[no-untyped-def]
        async with _answered(self._gateway, context):
            if request.page_size < 0:
                raise InvalidRequestError({"page_size": f"{request.page_size} is negative"})
            records = [job.record for job in reversed(self._gateway.jobs.values())]
            kept = [record for record in records if not request.states or record.state in request.states]
            start = int(request.page_token or 0)
            end = start + min(request.page_size or DEFAULT_PAGE_SIZE, MAX_PAGE_SIZE)
            token = str(end) if end < len(kept) else ""
            return generation_service_pb2.ListJobsResponse(jobs=kept[start:end], next_page_token=token)

    async def CancelJob(self, request, context):  # type: ignore[no-untyped-def]
        async with _answered(self._gateway, context):
            job = self._gateway.find_job(request.job_id)
            job.cancel()
            return generation_service_pb2.CancelJobResponse(job=job.record)

    async def ListDeadJobs(self, request, context):  # type: ignore[no-untyped-def]
        async with _answered(self._gateway, context):
            dead = [job.record for job in reversed(self._gateway.jobs.values()) if job.is_dead]
            start = int(request.page_token or 0)
            end = start + min(request.page_size or DEFAULT_PAGE_SIZE, MAX_PAGE_SIZE)
            token = str(end) if end < len(dead) else ""
            return generation_service_pb2.ListDeadJobsResponse(jobs=dead[start:end], next_page_token=token)

    async def RedriveJob(self, request, context):  # type: ignore[no-untyped-def]
        async with _answered(self._gateway, context):
            job = self._gateway.redrive(request.job_id)
            return generation_service_pb2.RedriveJobResponse(job=job.record)

    async def WatchJob(self, request, context):  # type: ignore[no-untyped-def]
        async with _answered(self._gateway, context):
            job = self._gateway.find_job(request.job_id)
            async with contextlib.aclosing(job.watch(request.after_sequence)) as events:
                async for event in events:
                    yield generation_service_pb2.WatchJobResponse(event=event)
            if request.with_output and job.record.state == job_pb2.JOB_STATE_SUCCEEDED:
                for chunk in _chunks(job.data, 0):
                    yield generation_service_pb2.WatchJobResponse(chunk=chunk)

    async def DownloadOutput(self, request, context):  # type: ignore[no-untyped-def]
        async with _answered(self._gateway, context):
            job = self._gateway.find_job(request.job_id)
            if job.record.state != job_pb2.JOB_STATE_SUCCEEDED:
                raise NoOutputError(f"job {request.job_id} has no file")
            if not 0 <= request.offset <= len(job.data):
                raise OffsetError(f"the file has {len(job.data)} bytes, and {request.offset} is past them")
            yield generation_service_pb2.DownloadOutputResponse(output=job.record.output)
            for chunk in _chunks(job.data, request.offset):
                yield generation_service_pb2.DownloadOutputResponse(chunk=chunk)

    async def Generate(self, request, context):  # type: ignore[no-untyped-def]
        async with _answered(self._gateway, context):
            job = self._gateway.submit(request.request, request.request_id, request.terms, _tenant(context))
            try:
                async with contextlib.aclosing(job.watch(0)) as events:
                    async for event in events:
                        yield generation_service_pb2.GenerateResponse(event=event)
            finally:
                job.cancel()
            for chunk in _chunks(job.data, 0):
                yield generation_service_pb2.GenerateResponse(chunk=chunk)


class ModelFake(model_service_pb2_grpc.ModelServiceServicer):
    """A catalogue; it plans nothing and loads at once."""

    def __init__(self, gateway: FakeGateway) -> None:
        self._gateway = gateway

    async def ListModels(self, request, context):  # type: ignore[no-untyped-def]
        async with _answered(self._gateway, context):
            return model_service_pb2.ListModelsResponse(models=self._gateway.models)

    async def GetModel(self, request, context):  # type: ignore[no-untyped-def]
        async with _answered(self._gateway, context):
            return model_service_pb2.GetModelResponse(model=find_model(self._gateway.models, request.model))

    async def PlanModel(self, request, context):  # type: ignore[no-untyped-def]
        async with _answered(self._gateway, context):
            raise UnsupportedError("a fake gateway plans nothing")

    async def LoadModel(self, request, context):  # type: ignore[no-untyped-def]
        async with _answered(self._gateway, context):
            model = find_model(self._gateway.models, request.model)
            loaded = worker_pb2.LoadedModel(load_seconds=0.0)
            loaded.plan.model = model.name
            yield model_service_pb2.LoadModelResponse(worker_id="fake-cpu", event=worker_pb2.LoadEvent(loaded=loaded))

    async def UnloadModel(self, request, context):  # type: ignore[no-untyped-def]
        async with _answered(self._gateway, context):
            return model_service_pb2.UnloadModelResponse(status=_worker_status())


class ClusterFake(cluster_service_pb2_grpc.ClusterServiceServicer):
    """One worker that is always there."""

    def __init__(self, gateway: FakeGateway) -> None:
        self._gateway = gateway

    async def ListWorkers(self, request, context):  # type: ignore[no-untyped-def]
        async with _answered(self._gateway, context):
            worker = cluster_service_pb2.ClusterWorker(
                address=self._gateway.address, is_reachable=True, status=_worker_status()
            )
            return cluster_service_pb2.ListWorkersResponse(workers=[worker])


class HealthFake(health_pb2_grpc.HealthServicer):  # type: ignore[misc]
    """Answers one status for every service."""

    def __init__(self, status: int) -> None:
        self.status = status

    async def Check(self, request, context):  # type: ignore[no-untyped-def]
        return health_pb2.HealthCheckResponse(status=self.status)


def _tenant(context: grpc.aio.ServicerContext) -> str:
    return str(dict(context.invocation_metadata() or ()).get(TENANT_KEY, "default"))


@contextlib.asynccontextmanager
async def _answered(gateway: FakeGateway, context: grpc.aio.ServicerContext) -> AsyncIterator[None]:
    try:
        gateway.check_refusal()
        yield
    except DarkroomError as error:
        await context.abort_with_status(to_status(error))


def _worker_status() -> worker_pb2.WorkerStatus:
    return worker_pb2.WorkerStatus(worker_id="fake-cpu", state=worker_pb2.WORKER_STATE_READY)


def _chunks(data: bytes, offset: int) -> list[worker_pb2.OutputChunk]:
    starts = range(offset, len(data), CHUNK_BYTES)
    return [worker_pb2.OutputChunk(offset=start, data=data[start : start + CHUNK_BYTES]) for start in starts]
