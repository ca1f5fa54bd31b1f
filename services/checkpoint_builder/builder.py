"""Builds as jobs: one at a time, in the order they were asked for.

Knows nothing of gRPC or torch. Invariants: a build that does not succeed leaves nothing in the store; of several
components all are kept or none; what is kept without a passing verdict is not listed.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

from darkroom.artifacts.folder import LocalArtifact, open_folder
from darkroom.artifacts.gates import Gates
from darkroom.artifacts.manifest import read_manifest
from darkroom.knowledge import Catalogue
from darkroom.rpc.errors import CancelledError, DarkroomError, DrainingError, InternalError, error_to_message
from darkroom.rpc.logs import log
from darkroom.rpc.request_ids import check_request_id
from darkroom.rpc.serving import owned_task
from darkroom.v1 import build_pb2, checkpoint_pb2
from services.checkpoint_builder.child import make
from services.checkpoint_builder.config import BuilderSettings
from services.checkpoint_builder.gates.judging import SHEET_NAME, judge
from services.checkpoint_builder.order import Task, read_order
from services.checkpoint_builder.records import Record, Records
from services.checkpoint_builder.shelf import Shelf, checkpoint_of
from services.checkpoint_builder.workroom import work_folder


class Builder:
    """One builder and its store. Use as an async context."""

    def __init__(self, settings: BuilderSettings, catalogue: Catalogue, shelf: Shelf) -> None:
        self._settings = settings
        self._catalogue = catalogue
        self._shelf = shelf
        self._records = Records()
        self._queue: asyncio.Queue[tuple[Record, Task]] = asyncio.Queue()
        self._running: tuple[Record, asyncio.Task[None]] | None = None
        self._stack = contextlib.AsyncExitStack()
        self._is_draining = False

    async def __aenter__(self) -> Builder:
        await self._stack.enter_async_context(owned_task(self._run_all(), "builds"))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def submit(self, order: build_pb2.BuildOrder, request_id: str) -> build_pb2.Build:
        """Queues a build, or returns the one that the request id stands for.

        Raises:
            DarkroomError: as `read_order`; RequestIdReusedError; DrainingError.
        """
        check_request_id(request_id)
        if (known := self._records.find_request(request_id, order)) is not None:
            return known.copy()
        if self._is_draining:
            raise DrainingError("this builder is stopping; ask it again once it is back")
        task = await asyncio.to_thread(read_order, order, self._catalogue, self._settings)
        record = Record(task.order, [part.name for part in task.parts])
        self._records.add(record, request_id, order)
        self._queue.put_nowait((record, task))
        log.info("build_queued", build_id=record.build.id, model=task.variant.name)
        return record.copy()

    def get(self, build_id: str) -> build_pb2.Build:
        """Returns a build. Raises UnknownBuildError."""
        return self._records.get(build_id).copy()

    def builds(self) -> list[build_pb2.Build]:
        """Returns all builds, newest first."""
        return self._records.newest()

    def watch(self, build_id: str) -> AsyncIterator[build_pb2.Build]:
        """Yields a build's state as it changes, the terminal one last. Raises UnknownBuildError."""
        return self._records.get(build_id).watch()

    async def cancel(self, build_id: str) -> build_pb2.Build:
        """Stops a build and returns it once it has stopped. Raises UnknownBuildError."""
        record = self._records.get(build_id)
        if self._running is not None and self._running[0] is record:
            task = self._running[1]
            task.cancel()
            await asyncio.wait({task})
        elif not record.has_ended:
            _cancelled(record)
        return record.copy()

    async def drain(self) -> None:
        """Takes nothing new, and ends what runs or waits."""
        self._is_draining = True
        for build in self._records.newest():
            await self.cancel(build.id)

    async def _run_all(self) -> None:
        while True:
            record, task = await self._queue.get()
            if record.has_ended:
                continue
            running = asyncio.create_task(self._run(record, task), name=record.build.id)
            self._running = (record, running)
            try:
                await asyncio.wait({running})
            finally:
                running.cancel()
                await asyncio.wait({running})
                self._running = None

    async def _run(self, record: Record, task: Task) -> None:
        """The job boundary: every end of a build is a state."""
        record.build.state = build_pb2.BUILD_STATE_RUNNING
        record.touch()
        try:
            with work_folder(self._settings.work_folder) as folder:
                kept = await self._build(record, task, folder)
            record.build.checkpoints.extend(kept)
            record.end(build_pb2.BUILD_STATE_SUCCEEDED)
        except asyncio.CancelledError:
            _cancelled(record)
        except DarkroomError as failure:
            _failed(record, failure)
        except Exception as bug:  # the job boundary: a bug fails this build alone
            log.exception("build_failed", build_id=record.build.id)
            _failed(record, InternalError(f"the build failed with {type(bug).__name__}; the builder's log has more"))
        log.info("build_ended", build_id=record.build.id, state=build_pb2.BuildState.Name(record.build.state))

    async def _build(self, record: Record, task: Task, folder: Path) -> list[checkpoint_pb2.Checkpoint]:
        told: dict[str, checkpoint_pb2.GateReport] = {}
        async for news in make(record.build.order, self._settings, folder):
            told |= {item.component: item.gates for item in news.checkpoints}
            record.merge(news)
        made = {part.name: await asyncio.to_thread(_opened, folder, part.stem) for part in task.parts}
        verdicts = await self._verdicts(record, task, folder, made, told)
        record.merge(build_pb2.Build(progress=build_pb2.BuildProgress(phase=build_pb2.BUILD_PHASE_STORING)))
        keeping = asyncio.create_task(asyncio.to_thread(self._keep, made, verdicts, folder), name="keep")
        with contextlib.suppress(asyncio.CancelledError):
            # A cancel that comes this late changes nothing: half of a build in the store would be worse.
            await asyncio.shield(keeping)
        await asyncio.wait({keeping})
        return keeping.result()

    def _keep(
        self, made: Mapping[str, LocalArtifact], verdicts: Mapping[str, Gates], folder: Path
    ) -> list[checkpoint_pb2.Checkpoint]:
        """Stores everything, and lists it last. Blocks."""
        sheet = folder / SHEET_NAME
        for artifact in made.values():
            self._shelf.keep(artifact.manifest, artifact.paths, sheet if sheet.exists() else None)
        for name, gates in verdicts.items():
            self._shelf.artifacts.pass_gates(made[name].manifest, gates)
        return [checkpoint_of(artifact.manifest, verdicts.get(name)) for name, artifact in made.items()]

    async def _verdicts(
        self,
        record: Record,
        task: Task,
        folder: Path,
        made: Mapping[str, LocalArtifact],
        told: Mapping[str, checkpoint_pb2.GateReport],
    ) -> dict[str, Gates]:
        """The verdicts by component: those that the store has already, or new ones; none where none are wanted."""
        known = {name: await asyncio.to_thread(self._shelf.gates, artifact.manifest) for name, artifact in made.items()}
        if all(gates is not None and gates.is_passed for gates in known.values()):
            return {name: gates for name, gates in known.items() if gates is not None}
        if task.order.skips_gates:
            return {}
        return await judge(task, self._catalogue, self._settings, folder, made, told, record.merge)


def _opened(folder: Path, stem: str) -> LocalArtifact:
    """Opens what was made, by the id that it has: it has passed nothing yet."""
    manifest = read_manifest((folder / f"{stem}.json").read_bytes())
    return open_folder(folder, stem, manifest.id)


def _cancelled(record: Record) -> None:
    record.build.error.CopyFrom(error_to_message(CancelledError("cancelled, as asked; nothing of it was kept")))
    record.end(build_pb2.BUILD_STATE_CANCELLED)


def _failed(record: Record, failure: DarkroomError) -> None:
    record.build.error.CopyFrom(error_to_message(failure))
    record.end(build_pb2.BUILD_STATE_FAILED)
