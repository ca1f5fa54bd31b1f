"""CheckpointBuilderService over gRPC: decode, call, encode. Knows nothing of how a checkpoint is made."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from pathlib import Path

import grpc

from darkroom.rpc.errors import PreconditionError
from darkroom.rpc.paging import cut_page, page_size
from darkroom.v1 import checkpoint_builder_service_pb2 as messages
from darkroom.v1 import checkpoint_builder_service_pb2_grpc
from services.checkpoint_builder.builder import Builder
from services.checkpoint_builder.publishing.run import run_publication
from services.checkpoint_builder.shelf import Shelf
from services.checkpoint_builder.validating import validate

CHUNK_BYTES = 256 * 1024
DEFAULT_PAGE, LARGEST_PAGE = 50, 500


class CheckpointBuilderServicer(checkpoint_builder_service_pb2_grpc.CheckpointBuilderServiceServicer):
    """The RPCs of one builder."""

    def __init__(self, builder: Builder, shelf: Shelf, work_folder: Path) -> None:
        self._builder = builder
        self._shelf = shelf
        self._work_folder = work_folder

    async def Build(self, request: messages.BuildRequest, context: grpc.aio.ServicerContext) -> messages.BuildResponse:
        return messages.BuildResponse(build=await self._builder.submit(request.order, request.request_id))

    async def GetBuild(
        self, request: messages.GetBuildRequest, context: grpc.aio.ServicerContext
    ) -> messages.GetBuildResponse:
        return messages.GetBuildResponse(build=self._builder.get(request.build_id))

    async def ListBuilds(
        self, request: messages.ListBuildsRequest, context: grpc.aio.ServicerContext
    ) -> messages.ListBuildsResponse:
        size = page_size(request.page_size, DEFAULT_PAGE, LARGEST_PAGE)
        # Newest first: a page is cut from the list turned round, by ids that fall.
        builds = self._builder.builds()
        page, token = cut_page(builds, lambda build: _falling(build.id), size, request.page_token, "builds")
        return messages.ListBuildsResponse(builds=page, next_page_token=token)

    async def WatchBuild(
        self, request: messages.WatchBuildRequest, context: grpc.aio.ServicerContext
    ) -> AsyncGenerator[messages.WatchBuildResponse, None]:
        async for build in self._builder.watch(request.build_id):
            yield messages.WatchBuildResponse(build=build)

    async def CancelBuild(
        self, request: messages.CancelBuildRequest, context: grpc.aio.ServicerContext
    ) -> messages.CancelBuildResponse:
        return messages.CancelBuildResponse(build=await self._builder.cancel(request.build_id))

    async def ListCheckpoints(
        self, request: messages.ListCheckpointsRequest, context: grpc.aio.ServicerContext
    ) -> messages.ListCheckpointsResponse:
        size = page_size(request.page_size, DEFAULT_PAGE, LARGEST_PAGE)
        found = await asyncio.to_thread(self._shelf.checkpoints, request.includes_unlisted)
        query = f"checkpoints {request.includes_unlisted}"
        page, token = cut_page(found, lambda item: f"{item.name}/{item.id}", size, request.page_token, query)
        return messages.ListCheckpointsResponse(checkpoints=page, next_page_token=token)

    async def GetCheckpoint(
        self, request: messages.GetCheckpointRequest, context: grpc.aio.ServicerContext
    ) -> messages.GetCheckpointResponse:
        checkpoint, manifest = await asyncio.to_thread(self._shelf.find, request.checkpoint_id)
        return messages.GetCheckpointResponse(checkpoint=checkpoint, manifest=manifest.data.decode())

    async def DownloadContactSheet(
        self, request: messages.DownloadContactSheetRequest, context: grpc.aio.ServicerContext
    ) -> AsyncGenerator[messages.DownloadContactSheetResponse, None]:
        checkpoint, _ = await asyncio.to_thread(self._shelf.find, request.checkpoint_id)
        sheet = await asyncio.to_thread(self._shelf.sheet, checkpoint.id)
        if sheet is None:
            raise PreconditionError(f"no pictures were made for {checkpoint.name}", checkpoint_id=checkpoint.id)
        for offset in range(0, len(sheet), CHUNK_BYTES):
            yield messages.DownloadContactSheetResponse(chunk=sheet[offset : offset + CHUNK_BYTES])

    async def ValidateCheckpoint(
        self, request: messages.ValidateCheckpointRequest, context: grpc.aio.ServicerContext
    ) -> AsyncGenerator[messages.ValidateCheckpointResponse, None]:
        checkpoint, manifest = await asyncio.to_thread(self._shelf.find, request.checkpoint_id)
        async with contextlib.aclosing(validate(self._shelf.artifacts.store, manifest)) as progress:
            async for news in progress:
                yield messages.ValidateCheckpointResponse(progress=news)
        yield messages.ValidateCheckpointResponse(checkpoint=checkpoint)

    async def PublishCheckpoint(
        self, request: messages.PublishCheckpointRequest, context: grpc.aio.ServicerContext
    ) -> AsyncGenerator[messages.PublishCheckpointResponse, None]:
        async with contextlib.aclosing(run_publication(self._shelf, request, self._work_folder)) as events:
            async for event in events:
                yield event

    async def CollectCheckpoints(
        self, request: messages.CollectCheckpointsRequest, context: grpc.aio.ServicerContext
    ) -> messages.CollectCheckpointsResponse:
        gone = await asyncio.to_thread(self._shelf.collect)
        return messages.CollectCheckpointsResponse(
            num_manifests=gone.num_manifests, num_blobs=gone.num_blobs, freed_bytes=gone.freed_bytes
        )


def _falling(build_id: str) -> str:
    """A name that sorts the other way round: hexadecimal digits, each taken from the last."""
    return "".join(f"{15 - int(digit, 16):x}" for digit in build_id)
