"""WorkerService: decode, call, encode. What the calls mean is in `worker.py`."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator

import grpc

from darkroom.v1 import worker_service_pb2 as messages
from darkroom.v1 import worker_service_pb2_grpc
from services.worker.worker import Worker


class WorkerServicer(worker_service_pb2_grpc.WorkerServiceServicer):
    """The RPCs of one worker."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    async def GetStatus(
        self, request: messages.GetStatusRequest, context: grpc.aio.ServicerContext
    ) -> messages.GetStatusResponse:
        return messages.GetStatusResponse(status=await self._worker.status())

    async def Inspect(
        self, request: messages.InspectRequest, context: grpc.aio.ServicerContext
    ) -> messages.InspectResponse:
        return messages.InspectResponse(inspection=await self._worker.inspect(request.model))

    async def Load(
        self, request: messages.LoadRequest, context: grpc.aio.ServicerContext
    ) -> AsyncGenerator[messages.LoadResponse, None]:
        async with contextlib.aclosing(self._worker.load(request)) as events:
            async for event in events:
                yield messages.LoadResponse(event=event)

    async def Unload(
        self, request: messages.UnloadRequest, context: grpc.aio.ServicerContext
    ) -> messages.UnloadResponse:
        return messages.UnloadResponse(status=await self._worker.unload(request))

    async def Generate(
        self, request: messages.WorkerServiceGenerateRequest, context: grpc.aio.ServicerContext
    ) -> AsyncGenerator[messages.WorkerServiceGenerateResponse, None]:
        async with contextlib.aclosing(self._worker.generate(request)) as companies:
            async for events in companies:
                if request.takes_more:
                    yield messages.WorkerServiceGenerateResponse(event=events[0], more=events[1:])
                    continue
                for event in events:
                    yield messages.WorkerServiceGenerateResponse(event=event)

    async def AckOutput(
        self, request: messages.AckOutputRequest, context: grpc.aio.ServicerContext
    ) -> messages.AckOutputResponse:
        self._worker.acknowledge(request)
        return messages.AckOutputResponse()

    async def Cancel(
        self, request: messages.CancelRequest, context: grpc.aio.ServicerContext
    ) -> messages.CancelResponse:
        self._worker.cancel(request.job_id)
        return messages.CancelResponse()
