"""One publication: files out of the store, the upload on a thread, its progress as messages.

Knows nothing of gRPC. Invariant: a publication that nobody listens to any more stops after the file under way.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator
from pathlib import Path
from tempfile import TemporaryDirectory

from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils._validators import validate_repo_id

from darkroom.artifacts.gates import Gates
from darkroom.artifacts.manifest import Manifest
from darkroom.artifacts.names import GATES_SUFFIX, MANIFEST_SUFFIX
from darkroom.rpc.errors import InvalidRequestError, NotGatedError
from darkroom.v1 import build_pb2, checkpoint_pb2
from darkroom.v1 import checkpoint_builder_service_pb2 as messages
from services.checkpoint_builder.publishing.hub import Upload, publish
from services.checkpoint_builder.shelf import PASSED, Shelf


async def run_publication(
    shelf: Shelf, request: messages.PublishCheckpointRequest, work_folder: Path
) -> AsyncGenerator[messages.PublishCheckpointResponse, None]:
    """Publishes, yielding progress and last the address.

    Raises:
        InvalidRequestError: no repository name.
        NotGatedError: the checkpoint has not passed its gates.
        DarkroomError: as `hub.publish`.
    """
    _check_repo_id(request.repo_id)
    checkpoint, manifest = await asyncio.to_thread(shelf.find, request.checkpoint_id)
    gates = await asyncio.to_thread(shelf.gates, manifest)
    if checkpoint.state != PASSED or gates is None:
        raise NotGatedError(f"{checkpoint.name} has not passed its gates; only what has is published")
    news: asyncio.Queue[build_pb2.BuildProgress] = asyncio.Queue()
    loop, stopped = asyncio.get_running_loop(), threading.Event()

    def on_bytes(done: int, total: int, name: str) -> None:
        phase = build_pb2.BUILD_PHASE_STORING
        told = build_pb2.BuildProgress(phase=phase, completed=done, total=total, detail=name)
        loop.call_soon_threadsafe(news.put_nowait, told)

    def work() -> messages.PublishedCheckpoint:
        work_folder.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=work_folder) as folder:
            files = _files(shelf, checkpoint, manifest, gates, Path(folder))
            upload = Upload(
                checkpoint, request.repo_id, files, request.is_public, request.replaces, on_bytes, stopped.is_set
            )
            return publish(upload)

    working = asyncio.create_task(asyncio.to_thread(work), name="publish")
    try:
        while not working.done():
            waiting = asyncio.create_task(news.get())
            await asyncio.wait({working, waiting}, return_when=asyncio.FIRST_COMPLETED)
            if waiting.done():
                yield messages.PublishCheckpointResponse(progress=waiting.result())
            else:
                waiting.cancel()
        yield messages.PublishCheckpointResponse(published=working.result())
    finally:
        stopped.set()
        await asyncio.wait({working})


def _files(
    shelf: Shelf, checkpoint: checkpoint_pb2.Checkpoint, manifest: Manifest, gates: Gates, folder: Path
) -> dict[str, Path | bytes]:
    """Weights first, what names them last."""
    files: dict[str, Path | bytes] = dict(shelf.fetch(manifest, folder))
    sheet = shelf.sheet(checkpoint.id)
    if sheet is not None:
        files[f"{checkpoint.name}.png"] = sheet
    files[checkpoint.name + GATES_SUFFIX] = gates.data
    files[checkpoint.name + MANIFEST_SUFFIX] = manifest.data
    return files


def _check_repo_id(repo_id: str) -> None:
    problem = "" if "/" in repo_id else "no owner"
    try:
        validate_repo_id(repo_id)
    except HFValidationError as wrong:
        problem = str(wrong)[:200]
    if problem:
        raise InvalidRequestError({"repo_id": f"{repo_id[:100]!r} is no repository ({problem}); write owner/name"})
