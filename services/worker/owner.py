"""Executes loads, unloads and runs on the engine, one at a time.

Knows nothing of tokens, of who asked, or of streams. Invariants: memory is given back and read before a load allocates;
whatever the engine does, every load and every item ends, and the state machine is where the device is.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from darkroom.rpc.errors import (
    CancelledError,
    CorruptCheckpointError,
    DarkroomError,
    EngineDiedError,
    EngineHungError,
    InternalError,
    KernelFailedError,
    NotLoadedError,
    OutOfMemoryError,
    SourceRefusedError,
    WorkerLostError,
    error_to_message,
)
from darkroom.rpc.logs import log
from darkroom.v1 import device_pb2, engine_pb2, generation_pb2, plan_pb2, worker_pb2
from services.worker.arbiter import Activity, Slot
from services.worker.config import WorkerSettings
from services.worker.engine_process import EngineProcess
from services.worker.keeper import EngineKeeper
from services.worker.lifecycle import EMPTY, GENERATING, LOADING, READY, UNLOADING, Lifecycle
from services.worker.loads import Load
from services.worker.run_checks import check_call
from services.worker.runs import Run
from services.worker.settled import contradiction, fallbacks, plan_that_fits
from services.worker.watchdog import ProgressWatch

# An engine that still holds more than this after an unload is replaced: only a process's end really gives memory back.
LEFTOVER_BYTES = 256 * 2**20
# Which fallbacks an item's failure triggers. A run never reloads: whoever asked loads the fallback and asks again.
TRIGGERS: dict[str, int] = {
    OutOfMemoryError.reason: plan_pb2.FALLBACK_TRIGGER_OUT_OF_MEMORY,
    KernelFailedError.reason: plan_pb2.FALLBACK_TRIGGER_KERNEL_FAILED,
}


class DeviceOwner:
    """The device, its engine, and what is loaded.

    Args:
        settings: which engine, and how long it may take to start.
        on_readiness: awaited when the device begins or ceases to answer.
    """

    def __init__(self, settings: WorkerSettings, on_readiness: Callable[[bool], Awaitable[None]]) -> None:
        self.slot = Slot()
        self.lifecycle = Lifecycle()
        self.keeper = EngineKeeper(settings, self._engine_died, on_readiness, lambda: not self.slot.is_busy)
        self.keeper.on_answer = self._engine_answers
        self.loaded: worker_pb2.LoadedModel | None = None
        # The plan that was asked for: a fallback may be in force instead.
        self.requested: plan_pb2.Plan | None = None

    async def load(self, load: Load) -> None:
        """Executes a load that is in line. Never raises: the load tells its end."""
        async with self.slot.turn(load):
            try:
                await self._load(load)
            except DarkroomError as failure:
                load.fail(_blamed(failure, load))
                log.warning("load_failed", model=load.plan.model, reason=failure.reason, detail=failure.message)
            except Exception as bug:  # the job boundary: a bug ends this load, not the worker
                log.exception("load_crashed")
                load.fail(_bug("load", bug))
            finally:
                self.lifecycle.enter_if(LOADING, EMPTY if self.loaded is None else READY)

    async def unload(self, activity: Activity) -> None:
        """Gives the memory back. Never raises: a dead engine has given it back, too."""
        async with self.slot.turn(activity):
            try:
                if self.keeper.engine is not None:
                    await self._evict()
            except DarkroomError as failure:
                log.warning("unload_failed", reason=failure.reason, detail=failure.message)
            finally:
                self.lifecycle.enter_if(UNLOADING, EMPTY)

    async def run(self, run: Run) -> None:
        """Executes a run that is in line. Never raises: every item tells its end."""
        async with self.slot.turn(run):
            try:
                await self._run(run)
                run.fail(InternalError("the engine ended the run without ending this item"))
            except (EngineDiedError, EngineHungError) as death:
                _blame(run, death)
            except DarkroomError as failure:
                run.fail(_blamed(failure, run))
            except Exception as bug:  # the job boundary
                log.exception("run_crashed")
                run.fail(_bug("run", bug))
            finally:
                self.lifecycle.enter_if(GENERATING, READY)

    def cancel(self, run: Run, job_id: str, why: DarkroomError) -> None:
        """Stops one item: at the engine's next boundary, or at once where the run still waits. Never blocks."""
        why = run.ended_early.setdefault(job_id, why)
        if run.on_cancel is not None:
            run.on_cancel(job_id)
        else:
            run.fail(why, [job_id])

    async def _load(self, load: Load) -> None:
        began_at = time.monotonic()
        _raise_if_stopped(load)
        self.lifecycle.enter(LOADING)
        await self._check(load)
        if self.loaded is not None:
            await self._evict()
        _raise_if_stopped(load)
        self.lifecycle.enter(LOADING)
        engine = await self.keeper.running()
        device = await self._read_settled(engine)
        _raise_if_stopped(load)
        if not load.replanned and (reason := contradiction(load.plan, device)):
            log.info("load_replanned", model=load.plan.model, reason=reason)
            load.record(worker_pb2.LoadEvent(replan=worker_pb2.Replan(device=device, reason=reason)))
            return
        plan = plan_that_fits(load.plan, device)
        if plan is not load.plan:
            load.record(_memory_fallback())
        await self._assemble(engine, load, plan, began_at)

    async def _check(self, load: Load) -> None:
        """Has the engine fetch the plan's weights and compare them with the plan, while what is loaded stays.

        A plan that names another source for what fails here is let through: the load tells that it took it.
        """
        engine = await self.keeper.running()
        check = engine_pb2.EngineCheck(plan=load.plan)
        command = engine_pb2.EngineCommand(command_id=engine.next_id(), check=check)
        watch = ProgressWatch(load.plan.idle, generation_pb2.PHASE_ASSEMBLING, time.monotonic)
        load.on_stop = lambda: engine.send_cancel(command.command_id)
        try:
            async for event in engine.execute(command, watch):
                if event.HasField("load"):
                    load.record(event.load)
        except (CorruptCheckpointError, SourceRefusedError):
            if not fallbacks(load.plan, plan_pb2.FALLBACK_TRIGGER_SOURCE_FAILED):
                raise
        finally:
            load.on_stop = None

    async def _assemble(self, engine: EngineProcess, load: Load, plan: plan_pb2.Plan, began_at: float) -> None:
        command = engine_pb2.EngineCommand(command_id=engine.next_id(), load=engine_pb2.EngineLoad(plan=plan))
        watch = ProgressWatch(plan.idle, generation_pb2.PHASE_ASSEMBLING, time.monotonic)
        load.on_stop = lambda: engine.send_cancel(command.command_id)
        async for event in engine.execute(command, watch):
            if event.HasField("load") and event.load.HasField("loaded"):
                self._loaded(load, event.load, time.monotonic() - began_at)
            elif event.HasField("load"):
                load.record(event.load)
        if not load.is_over:
            raise InternalError("the engine ended the load without a model")

    def _loaded(self, load: Load, event: worker_pb2.LoadEvent, seconds: float) -> None:
        event.loaded.load_seconds = seconds
        self.loaded, self.requested = event.loaded, load.plan
        # An unload that came meanwhile has moved on to UNLOADING and takes its turn next.
        self.lifecycle.enter_if(LOADING, READY)
        log.info(
            "loaded",
            model=event.loaded.plan.model,
            planned_bytes=event.loaded.planned_bytes,
            measured_bytes=event.loaded.measured_bytes,
            load_s=round(seconds, 3),
        )
        load.record(event)

    async def _evict(self) -> None:
        """Gives back what is loaded; replaces the engine if it does not let go."""
        self.lifecycle.enter(UNLOADING)
        engine = await self.keeper.running()
        device = await self._read_settled(engine)
        if device.memory.engine_bytes > LEFTOVER_BYTES:
            log.warning("engine_replaced", leftover_bytes=device.memory.engine_bytes)
            engine.kill()
            await asyncio.shield(engine.death)
        self.loaded = self.requested = None
        self.lifecycle.enter_if(UNLOADING, EMPTY)

    async def _read_settled(self, engine: EngineProcess) -> device_pb2.Device:
        """Has the engine let go of everything, and returns the settled reading."""
        command = engine_pb2.EngineCommand(command_id=engine.next_id(), unload=engine_pb2.EngineUnload())
        budgets = self.loaded.plan.idle if self.loaded is not None else plan_pb2.IdleBudgets()
        watch = ProgressWatch(budgets, generation_pb2.PHASE_ASSEMBLING, time.monotonic)
        async for event in engine.execute(command, watch):
            self.keeper.take_reading(event.ended.device)
        return self.keeper.device or device_pb2.Device()

    async def _run(self, run: Run) -> None:
        _raise_if_stopped(run)
        items = [item for item in run.items if not run.has_ended(item.job_id)]
        if not items:
            return
        loaded, engine = self.loaded, self.keeper.engine
        if loaded is None or engine is None or loaded.plan.model != run.model:
            raise not_loaded(run.model, loaded)
        check_call(loaded.plan, items)
        self.lifecycle.enter(GENERATING)
        command = engine_pb2.EngineCommand(command_id=engine.next_id(), generate=engine_pb2.EngineGenerate(items=items))
        at_once = min(len(items), max(1, loaded.plan.call.max_batch))
        watch = ProgressWatch(loaded.plan.idle, generation_pb2.PHASE_ENCODING, time.monotonic, at_once)
        run.on_stop = lambda: engine.send_cancel(command.command_id)
        run.on_cancel = lambda job_id: engine.send_cancel(command.command_id, job_id)
        async for event in engine.execute(command, watch):
            if event.HasField("run"):
                run.record(_explained(event.run, run, loaded.plan))

    def _engine_answers(self, is_answering: bool) -> None:
        """It started or did not, fell silent or is heard again."""
        self.lifecycle.has_failed = not is_answering

    def _engine_died(self, death: DarkroomError) -> None:
        self.loaded = self.requested = None
        self.lifecycle.enter(EMPTY)


def not_loaded(model: str, loaded: worker_pb2.LoadedModel | None) -> NotLoadedError:
    """The error for a run whose model is not the one that is loaded."""
    present = loaded.plan.model if loaded is not None else "none"
    return NotLoadedError(f"model {model!r} is not loaded here; loaded is {present!r}", model=model, loaded=present)


def _bug(what: str, bug: Exception) -> InternalError:
    return InternalError(f"the {what} failed with {type(bug).__name__}; the worker's log has the traceback")


def _raise_if_stopped(activity: Activity) -> None:
    if activity.stopped is not None:
        raise activity.stopped


def _blamed(failure: DarkroomError, activity: Activity) -> DarkroomError:
    """A cancellation is told by the reason it was asked for."""
    return activity.stopped if isinstance(failure, CancelledError) and activity.stopped is not None else failure


def _blame(run: Run, death: DarkroomError) -> None:
    """Ends the items of an engine that is gone; those that it had not begun are bystanders.

    Of several that it was making together none can be told from the others: the error then says how many they are
    (metadata "suspects"), and each is to be tried alone.
    """
    suspects = run.being_made
    if len(suspects) > 1:
        death.facts["suspects"] = str(len(suspects))
    run.fail(death, suspects)
    run.fail(WorkerLostError(f"the engine ended before this item began: {death.message}"))


def _explained(event: worker_pb2.RunEvent, run: Run, plan: plan_pb2.Plan) -> worker_pb2.RunEvent:
    """Adds to an item's error what only the supervisor knows: who stopped it, and which fallback it triggers."""
    why = run.stopped or run.ended_early.get(event.job_id)
    if event.error.reason == CancelledError.reason and why is not None:
        event.error.CopyFrom(error_to_message(why))
    trigger = TRIGGERS.get(event.error.reason)
    if trigger is not None and fallbacks(plan, trigger):
        name = plan_pb2.FallbackTrigger.Name(trigger)  # type: ignore[arg-type]
        event.error.metadata["triggered_fallback"] = name.removeprefix("FALLBACK_TRIGGER_")
    return event


def _memory_fallback() -> worker_pb2.LoadEvent:
    short = error_to_message(OutOfMemoryError("the settled reading has no room for the plan"))
    taken = worker_pb2.FallbackTaken(trigger=plan_pb2.FALLBACK_TRIGGER_OUT_OF_MEMORY, error=short)
    return worker_pb2.LoadEvent(fallback=taken)
