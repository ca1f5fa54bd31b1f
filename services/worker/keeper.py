"""Keeps an engine process alive: starts it, tells when its device answers, starts the next one when it ends.

Knows nothing of plans or runs. Invariant: at most one engine process exists, and the next one starts only after the
last one is gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable

from darkroom.rpc.errors import DarkroomError, EngineDiedError, error_to_message
from darkroom.rpc.logs import log
from darkroom.v1 import device_pb2, engine_pb2, error_pb2, generation_pb2, plan_pb2
from services.worker.config import WorkerSettings
from services.worker.engine_process import EngineProcess
from services.worker.watchdog import ProgressWatch

# Pauses between starts that fail one after the other, in seconds; the last one repeats.
START_PAUSES_S = (0.5, 1.0, 2.0, 5.0, 15.0, 30.0)
# A reading that takes longer than this on an idle device means that the device does not answer.
READING_LIMIT_S = 20.0
# An idle device is asked this often, and counts as not ready after this long without an answer.
PING_S = 10.0
ANSWER_S = 5.0


class EngineKeeper:
    """The engine of one worker, whichever process it is at the moment.

    Args:
        settings: what to start, and how long it may take.
        on_death: called at once when a running engine has ended.
        on_readiness: awaited with True when the device answers, and with False when it stops answering.
        is_idle: tells that no activity has the device or waits for it.
    """

    def __init__(
        self,
        settings: WorkerSettings,
        on_death: Callable[[DarkroomError], None],
        on_readiness: Callable[[bool], Awaitable[None]],
        is_idle: Callable[[], bool],
    ) -> None:
        self._settings = settings
        self._on_death = on_death
        self._on_readiness = on_readiness
        self._is_idle = is_idle
        self._settled = asyncio.Event()
        self._reading: asyncio.Task[None] | None = None
        self._reading_began_at = 0.0
        self._is_silent = False
        # Told of every start, whether it worked; and of an engine that falls silent or is heard again.
        self.on_answer: Callable[[bool], None] = lambda answers: None
        self.engine: EngineProcess | None = None
        self.has_failed_to_start = False
        self.last_failure: error_pb2.Error | None = None
        self.device: device_pb2.Device | None = None
        self.device_read_at = time.monotonic()

    async def run(self) -> None:
        """Owns the engine until cancelled."""
        failures = 0
        try:
            while True:
                try:
                    engine = await EngineProcess.start(self._settings, self._died)
                except DarkroomError as failure:
                    await self._start_failed(failure)
                    await asyncio.sleep(START_PAUSES_S[min(failures, len(START_PAUSES_S) - 1)])
                    failures += 1
                    continue
                failures = 0
                await self._started(engine)
                await asyncio.shield(engine.death)
                await self._on_readiness(False)
        finally:
            if self._reading is not None:
                self._reading.cancel()
            if self.engine is not None:
                await self.engine.close()

    async def running(self) -> EngineProcess:
        """The engine, once it runs.

        Raises:
            EngineDiedError: it does not start.
        """
        while self.engine is None:
            if self.has_failed_to_start and self.last_failure is not None:
                raise EngineDiedError(f"the engine does not start: {self.last_failure.message}")
            await self._settled.wait()
        return self.engine

    def take_reading(self, device: device_pb2.Device) -> None:
        """Keeps a reading that came with an answer."""
        self.device = device
        self.device_read_at = time.monotonic()

    async def refresh(self, limit_s: float) -> None:
        """Reads the idle device, waiting at most `limit_s`; a reading that takes longer is kept when it comes."""
        if self.engine is None or not self._is_idle():
            return
        if self._reading is None or self._reading.done():
            self._reading_began_at = time.monotonic()
            self._reading = asyncio.create_task(self._read(self.engine), name="read-device")
        await asyncio.wait({self._reading}, timeout=limit_s)

    async def ping(self) -> None:
        """Reads an idle device from time to time, and takes readiness away while a reading gets no answer.

        A reading that never comes is ended by its watchdog, and the engine with it.
        """
        is_pending = self._reading is not None and not self._reading.done()
        if self.engine is not None and not is_pending and time.monotonic() - self.device_read_at > PING_S:
            await self.refresh(0.0)
        is_silent = is_pending and time.monotonic() - self._reading_began_at > ANSWER_S
        if self.engine is not None and is_silent != self._is_silent:
            self._is_silent = is_silent
            log.warning("device_silent" if is_silent else "device_answers", pid=self.engine.pid)
            self.on_answer(not is_silent)
            await self._on_readiness(not is_silent)

    async def _read(self, engine: EngineProcess) -> None:
        limit = plan_pb2.IdleBudgets()
        limit.assemble.FromNanoseconds(int(READING_LIMIT_S * 1e9))
        command = engine_pb2.EngineCommand(command_id=engine.next_id(), read_device=engine_pb2.EngineReadDevice())
        watch = ProgressWatch(limit, generation_pb2.PHASE_ASSEMBLING, time.monotonic)
        # Nothing is awaited between this look and the sending: a reading never lines up behind an activity, whose
        # length would count as the reading's silence.
        if not self._is_idle():
            return
        with contextlib.suppress(DarkroomError):  # a death is told to everybody by `_died`
            async for event in engine.execute(command, watch):
                self.take_reading(event.ended.device)

    def _died(self, engine: EngineProcess, death: DarkroomError) -> None:
        self.engine = None
        if not engine.was_ended_on_purpose:
            self.last_failure = error_to_message(death)
            log.error("engine_ended", pid=engine.pid, reason=death.reason, detail=death.message, **death.facts)
        self._on_death(death)

    async def _started(self, engine: EngineProcess) -> None:
        self.engine = engine
        self.has_failed_to_start = self._is_silent = False
        self.on_answer(True)
        self.take_reading(engine.device)
        self._wake()
        log.info("engine_started", pid=engine.pid, device=engine.device.id)
        await self._on_readiness(True)

    async def _start_failed(self, failure: DarkroomError) -> None:
        self.has_failed_to_start = True
        self.on_answer(False)
        self.last_failure = error_to_message(failure)
        log.error("engine_does_not_start", reason=failure.reason, detail=failure.message, **failure.facts)
        self._wake()
        await self._on_readiness(False)

    def _wake(self) -> None:
        self._settled.set()
        self._settled = asyncio.Event()
