"""The worker as its callers see it: load, generate, cancel, acknowledge, unload, status, drain.

Decides who may (the fence), remembers what was promised (the shelf), and hands the work to the device's owner. Knows
nothing of gRPC or of how an engine is spoken to. Invariant: nothing here waits for the device, except a caller who
follows events or unloads an idle model.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from types import TracebackType
from typing import Any

import structlog

from darkroom.rpc.errors import (
    CancelledError,
    DarkroomError,
    DeadlineError,
    DrainingError,
    InvalidRequestError,
    NotLoadedError,
    StaleTokenError,
    UnknownJobError,
)
from darkroom.rpc.logs import log
from darkroom.v1 import worker_pb2, worker_service_pb2
from services.worker.arbiter import Activity, Admission, Fence
from services.worker.config import WorkerSettings
from services.worker.deadlines import deadlines
from services.worker.inspection import Inspector
from services.worker.lifecycle import LOADING, READY, UNLOADING
from services.worker.loads import Load
from services.worker.owner import DeviceOwner, not_loaded
from services.worker.plan_checks import check_plan, check_schemes
from services.worker.run_checks import check_items
from services.worker.runs import Run, Shelf

# Status answers within 100 ms, whatever the engine does; a fresh reading gets half of that.
STATUS_WAIT_S = 0.05
HOUSEKEEPING_S = 0.5
# Progress waits for more, for those who read it so: whoever takes the processor takes it from the engine's threads.
COMPANY_S = 0.2
# Of the grace period, what is left for cancelled items to tell their end.
HAND_BACK_S = 2.0

Token = worker_pb2.FencingToken


class Worker:
    """One device's worker. Use as an async context manager.

    Args:
        settings: the operator's.
        on_readiness: awaited with True or False when the device begins or ceases to answer.
    """

    def __init__(self, settings: WorkerSettings, on_readiness: Callable[[bool], Awaitable[None]]) -> None:
        self._settings = settings
        self._device = DeviceOwner(settings, on_readiness)
        self._fence = Fence(settings.worker_hold_s, time.monotonic)
        self._shelf = Shelf(settings.worker_keep_s, settings.worker_keep_bytes)
        self._inspector = Inspector(settings)
        self._load: Load | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Worker:
        self._spawn(self._device.keeper.run(), "engine-keeper")
        self._spawn(self._keep_house(), "housekeeping")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def wait_for_device(self) -> None:
        """Returns when the device answers. Raises EngineDiedError if the engine does not start."""
        await self._device.keeper.running()

    async def load(self, request: worker_service_pb2.LoadRequest) -> AsyncGenerator[worker_pb2.LoadEvent, None]:
        """Loads a plan and yields what happens; joins a load of the same plan. Raises what it fails with."""
        token = _token(request)
        self._refuse_if_draining()
        self._fence.check(token)
        check_schemes(request.plan, self._device.keeper.device)
        await asyncio.to_thread(check_plan, request.plan, self._settings, self._inspector.is_trusted)
        self._refuse_if_draining()
        admission = self._admit(token)
        load = self._load_to_join(request) or self._begin_load(request, admission)
        async with contextlib.aclosing(load.follow(self._settings.worker_heartbeat_s)) as events:
            async for event in events:
                yield event
        self._fence.touch()

    async def generate(
        self, request: worker_service_pb2.WorkerServiceGenerateRequest
    ) -> AsyncGenerator[list[worker_pb2.RunEvent], None]:
        """Runs items, or re-attaches to a run of this id, and yields its events, those together that are there.

        Leaving does not stop the run.
        """
        token = _token(request)
        if not request.run_id:
            raise InvalidRequestError({"run_id": "a run needs a name"})
        self._fence.check(token)
        if self._shelf.find(request.run_id) is None:
            self._refuse_if_draining()
            check_items(list(request.items))
        admission = self._admit(token)
        run = self._shelf.find(request.run_id) or self._begin_run(request, admission)
        beat_s, pause_s = self._settings.worker_heartbeat_s, COMPANY_S if request.takes_more else 0.0
        async with contextlib.aclosing(run.follow(request.after_sequence, beat_s, pause_s)) as companies:
            async for events in companies:
                yield events
        self._fence.touch()

    def cancel(self, job_id: str) -> None:
        """Stops an item at its next boundary. Raises UnknownJobError if the worker never had it."""
        run = self._shelf.find_by_job(job_id)
        if run is None and not self._shelf.had(job_id):
            raise UnknownJobError(f"this worker never had job {job_id!r}", job_id=job_id)
        if run is not None and not run.has_ended(job_id):
            self._device.cancel(run, job_id, CancelledError("somebody asked for it"))

    def acknowledge(self, request: worker_service_pb2.AckOutputRequest) -> None:
        """Forgets an item's output, stopping it if it still runs. Raises StaleTokenError for an older claim."""
        self._fence.check(_token(request))
        run = self._shelf.find_by_job(request.job_id)
        if run is None:
            return
        if not run.has_ended(request.job_id):
            self._device.cancel(run, request.job_id, CancelledError("nobody wants it any more"))
        run.acknowledge(request.job_id)
        self._tidy(run)

    async def unload(self, request: worker_service_pb2.UnloadRequest) -> worker_pb2.WorkerStatus:
        """Gives the memory back; answers at once where something runs, which is asked to stop."""
        self._admit(_token(request))
        is_busy = self._device.slot.is_busy
        self._device.slot.stop_all(CancelledError("stopped because the model is unloaded"))
        if self._device.loaded is not None or self._device.lifecycle.device_state == LOADING:
            self._device.lifecycle.enter(UNLOADING)
        activity = Activity()
        self._device.slot.join(activity)
        unloading = self._spawn(self._device.unload(activity), "unload")
        if not is_busy:
            await asyncio.shield(unloading)
            self._fence.release()
        return await self.status()

    async def status(self) -> worker_pb2.WorkerStatus:
        """What the worker is and holds, within 100 ms."""
        keeper = self._device.keeper
        await keeper.refresh(STATUS_WAIT_S)
        status = worker_pb2.WorkerStatus(
            worker_id=self._worker_id(),
            state=self._device.lifecycle.reported_state,  # type: ignore[arg-type]
            device=keeper.device,
            loaded=self._device.loaded,
            holder=self._fence.holder,
            job_ids=self._shelf.job_ids,
            engine_pid=keeper.engine.pid if keeper.engine is not None else 0,
            last_failure=keeper.last_failure,
        )
        if keeper.device is not None:
            status.device_age_seconds = time.monotonic() - keeper.device_read_at
        return status

    async def inspect(self, model: str) -> worker_pb2.Inspection:
        """What this machine knows of a model. Raises UnknownModelError."""
        return await asyncio.to_thread(self._inspector.inspect, model)

    async def drain(self) -> None:
        """Takes nothing new; lets runs finish, or hands them back shortly before the grace period ends."""
        self._device.lifecycle.drain()
        if self._load is not None and not self._load.is_over:
            self._load.stop(DrainingError("this worker is stopping"))
        patience_s = max(self._settings.grace_s - HAND_BACK_S, self._settings.grace_s / 2)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience_s):
                await self._until_idle()
        if self._device.slot.is_busy:
            self._device.slot.stop_all(DrainingError("this worker is stopping; the job starts over elsewhere"))
            await self._until_idle()

    async def _until_idle(self) -> None:
        while self._device.slot.is_busy:
            await asyncio.sleep(0.02)

    def _begin_load(self, request: worker_service_pb2.LoadRequest, admission: Admission) -> Load:
        load = Load(request.plan, replanned=request.replanned)
        self._load = load
        self._device.slot.join(load)
        self._device.slot.stop_all(_superseded(admission), but=load)
        self._spawn(self._device.load(load), "load")
        return load

    def _load_to_join(self, request: worker_service_pb2.LoadRequest) -> Load | None:
        """A load of the same plan that goes on; or a finished one, where the same plan is loaded already."""
        going = self._load
        if going is not None and not going.is_over and going.stopped is None and going.plan == request.plan:
            return going
        device = self._device
        is_ready = device.lifecycle.device_state == READY and not device.slot.is_busy
        if is_ready and device.loaded is not None and device.requested == request.plan:
            load = Load(request.plan, replanned=request.replanned)
            load.record(worker_pb2.LoadEvent(loaded=device.loaded))
            return load
        return None

    def _begin_run(self, request: worker_service_pb2.WorkerServiceGenerateRequest, admission: Admission) -> Run:
        if request.after_sequence > 0 or request.must_exist:
            # Whoever saw events of a run wants that run, not another one of the same name.
            text = f"this worker no longer has run {request.run_id!r}"
            raise NotLoadedError(text, run_id=request.run_id)
        loaded = self._device.loaded
        is_loading = self._load is not None and not self._load.is_over
        if not is_loading and (loaded is None or loaded.plan.model != request.model):
            raise not_loaded(request.model, loaded)
        for item in request.items:
            if self._shelf.find_by_job(item.job_id) is not None:
                raise InvalidRequestError({"items.job_id": f"{item.job_id!r} belongs to another run on this worker"})
        if admission is Admission.NEWER:
            self._device.slot.stop_all(_superseded(admission))
        run = Run(request.run_id, request.model, request.items)
        self._shelf.add(run)
        self._device.slot.join(run)
        self._spawn(self._execute(run), "run")
        return run

    async def _execute(self, run: Run) -> None:
        began_at = time.monotonic()
        with structlog.contextvars.bound_contextvars(run_id=run.run_id, job_ids=run.job_ids):
            log.info("run_started", model=run.model)
            with deadlines(run, lambda job_id: self._device.cancel(run, job_id, _late())):
                await self._device.run(run)
            log.info("run_ended", seconds=round(time.monotonic() - began_at, 3), failures=run.failures)
        self._fence.touch()
        self._tidy(run)

    def _admit(self, token: Token | None) -> Admission:
        admission = self._fence.admit(token)
        if admission is Admission.NEW_STORE:
            log.warning("new_store", store_id=token.store_id if token is not None else "")
            self._device.slot.stop_all(_superseded(admission))
            for run in self._shelf.runs:
                self._shelf.drop(run)
        return admission

    def _tidy(self, run: Run) -> None:
        """Forgets a run that is done with, and lets its holder go."""
        if not run.is_settled:
            return
        self._shelf.drop(run)
        if not self._device.slot.is_busy:
            self._fence.release()

    def _refuse_if_draining(self) -> None:
        if self._device.lifecycle.is_draining:
            raise DrainingError("this worker is stopping and takes nothing new", retry_after_s=1.0)

    def _worker_id(self) -> str:
        device = self._device.keeper.device
        place = device.id if device is not None else self._settings.worker_device
        return self._settings.worker_id or f"{socket.gethostname()}-{place}"

    async def _keep_house(self) -> None:
        while True:
            await asyncio.sleep(HOUSEKEEPING_S)
            if self._device.slot.is_busy:
                self._fence.touch()
            else:
                self._fence.release_if_silent()
                await self._device.keeper.ping()
            for run in self._shelf.unclaimed(time.monotonic()):
                log.warning("run_unclaimed", run_id=run.run_id, is_over=run.is_over)
                run.stop(CancelledError("nobody claimed this run"))
                self._shelf.drop(run)

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._forget)
        return task

    def _forget(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (bug := task.exception()) is not None:
            log.error("task_failed", task=task.get_name(), exc_info=bug)


def _token(request: Any) -> Token | None:
    token: Token = request.token
    if not request.HasField("token"):
        return None
    if not token.store_id or token.counter <= 0:
        raise InvalidRequestError({"token": "store_id must be set and counter positive"})
    return token


def _late() -> DeadlineError:
    return DeadlineError("the job's deadline passed before its picture was made")


def _superseded(admission: Admission) -> DarkroomError:
    if admission is Admission.NEWER:
        return StaleTokenError("a newer claim took the worker")
    if admission is Admission.NEW_STORE:
        return StaleTokenError("a claim of another store took the worker")
    return CancelledError("stopped because another model is loaded")
