"""One engine process: spawned, spoken to over a socket, killed, and its end explained.

Spawned, never forked: this process runs gRPC threads. Knows nothing of what commands mean. Invariants: once `death` is
set the process is gone, its memory with it; every command still under way then ends with that error.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import signal
import socket
import sys
import time
from collections.abc import AsyncGenerator, Callable
from typing import Any

from google.protobuf.message import DecodeError

from darkroom.rpc.errors import DarkroomError, EngineDiedError, EngineHungError, InternalError, error_from_message
from darkroom.v1 import device_pb2, engine_pb2, generation_pb2
from services.worker.config import WorkerSettings
from services.worker.watchdog import ProgressWatch
from services.worker.wire import pack, read_message

# An engine that is told to go closes within this, or is killed.
FAREWELL_S = 1.0
# A wake-up this much later than asked for means that this process was stopped, not that the engine was silent.
LATE_WAKE_S = 1.0


class EngineProcess:
    """A running engine. Made by `start`."""

    def __init__(self, process: asyncio.subprocess.Process, reader: asyncio.StreamReader, writer: asyncio.StreamWriter):
        self._process = process
        self._reader = reader
        self._writer = writer
        self._ids = itertools.count(1)
        self._answers: dict[int, asyncio.Queue[engine_pb2.EngineEvent]] = {}
        self._killed_for: DarkroomError | None = None
        self._listening: asyncio.Task[None] | None = None
        # Set when the process has ended; the reason is the result.
        self.death: asyncio.Future[DarkroomError] = asyncio.get_running_loop().create_future()
        self.device = device_pb2.Device()

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    @classmethod
    async def start(
        cls, settings: WorkerSettings, on_death: Callable[[EngineProcess, DarkroomError], None]
    ) -> EngineProcess:
        """Spawns an engine and waits for its hello. `on_death` is called before any command learns of the end.

        Raises:
            EngineDiedError: it ended before its hello.
            EngineHungError: no hello came in time; it was killed.
        """
        ours, theirs = socket.socketpair()
        with theirs:
            command = (sys.executable, "-m", settings.worker_engine_module)
            process = await asyncio.create_subprocess_exec(
                *command,
                *("--socket", str(theirs.fileno()), "--settings", settings.model_dump_json()),
                pass_fds=[theirs.fileno()],
                stdin=asyncio.subprocess.DEVNULL,
            )
        reader, writer = await asyncio.open_unix_connection(sock=ours)
        engine = cls(process, reader, writer)
        try:
            async with asyncio.timeout(settings.worker_start_s):
                hello = await read_message(reader, engine_pb2.EngineEvent)
        except (DecodeError, InternalError) as garbage:
            engine.kill(EngineDiedError(f"the engine's hello is no message ({garbage}); it was killed"))
            hello = None
        except TimeoutError:
            engine.kill(EngineHungError(f"the engine said nothing for {settings.worker_start_s:.0f} s after its start"))
            hello = None
        except BaseException:
            engine.kill()
            raise
        if hello is None or not hello.HasField("hello"):
            raise await engine._ended()
        engine.device = hello.hello.device
        engine._listening = asyncio.create_task(engine._listen(on_death), name="engine-events")
        return engine

    def kill(self, why: DarkroomError | None = None) -> None:
        """Ends the process with SIGKILL. `why` becomes its death; None means on purpose."""
        if self._killed_for is None:
            self._killed_for = why or InternalError("the engine was replaced on purpose")
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()

    async def close(self) -> None:
        """Lets the process go: it ends itself when the socket closes, and is killed if it does not."""
        self._killed_for = self._killed_for or InternalError("the worker stops")
        self._writer.close()
        try:
            async with asyncio.timeout(FAREWELL_S):
                await self._process.wait()
        except TimeoutError:
            self.kill()
            await self._process.wait()
        if self._listening is not None:
            await self._listening

    def send_cancel(self, command_id: int, job_id: str = "") -> None:
        """Asks a command, or one of its items, to stop at the next boundary. Never blocks."""
        cancel = engine_pb2.EngineCancel(target_id=command_id, job_id=job_id)
        self._send(engine_pb2.EngineCommand(command_id=next(self._ids), cancel=cancel))

    def next_id(self) -> int:
        """An id for a command to come."""
        return next(self._ids)

    async def execute(
        self, command: engine_pb2.EngineCommand, watch: ProgressWatch
    ) -> AsyncGenerator[engine_pb2.EngineEvent, None]:
        """Sends a command and yields its events, the last one being `ended` without an error.

        Raises:
            EngineHungError: silent beyond the budget of the phase; the process was killed and is gone.
            EngineDiedError: the process ended.
            DarkroomError: what the engine answered.
        """
        answers: asyncio.Queue[engine_pb2.EngineEvent] = asyncio.Queue()
        self._answers[command.command_id] = answers
        try:
            self._send(command)
            while True:
                event = await self._next(answers, watch)
                watch.saw(_progress_of(event))
                if event.HasField("ended") and event.ended.HasField("error"):
                    raise error_from_message(event.ended.error)
                yield event
                if event.HasField("ended"):
                    return
        finally:
            del self._answers[command.command_id]

    async def _next(
        self, answers: asyncio.Queue[engine_pb2.EngineEvent], watch: ProgressWatch
    ) -> engine_pb2.EngineEvent:
        """The next event of a command, or the process's death, or the end of patience."""
        while True:
            if not answers.empty():
                return answers.get_nowait()
            if self.death.done():
                raise self.death.result()
            limit_s, began_at = max(watch.remaining_s, 0.0), time.monotonic()
            arrival = asyncio.ensure_future(answers.get())
            try:
                waited: set[asyncio.Future[Any]] = {arrival, self.death}
                await asyncio.wait(waited, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
            finally:
                event = arrival.result() if arrival.done() and not arrival.cancelled() else None
                arrival.cancel()
            if event is not None:
                return event
            if self.death.done() or watch.remaining_s > 0:
                continue
            if time.monotonic() - began_at > limit_s + LATE_WAKE_S:
                # This process slept; what the engine sent meanwhile is still in the socket.
                watch.saw(None)
                continue
            self.kill(_hung(watch))
            await asyncio.shield(self.death)

    def _send(self, command: engine_pb2.EngineCommand) -> None:
        if not self._writer.is_closing():
            self._writer.write(pack(command))

    async def _listen(self, on_death: Callable[[EngineProcess, DarkroomError], None]) -> None:
        try:
            while (event := await read_message(self._reader, engine_pb2.EngineEvent)) is not None:
                if (answers := self._answers.get(event.command_id)) is not None:
                    answers.put_nowait(event)
        except (DecodeError, InternalError) as garbage:
            self.kill(EngineDiedError(f"the engine said what is no message ({garbage}); it was killed"))
        death = await self._ended()
        on_death(self, death)
        self.death.set_result(death)

    async def _ended(self) -> DarkroomError:
        """Waits for the process to be gone and returns why. An engine that only closed its socket is killed."""
        try:
            async with asyncio.timeout(FAREWELL_S):
                code = await self._process.wait()
        except TimeoutError:
            self.kill(EngineDiedError("the engine closed its socket without ending; it was killed"))
            code = await self._process.wait()
        self._writer.close()
        return self._killed_for or explain_exit(code)

    @property
    def was_ended_on_purpose(self) -> bool:
        """True if the supervisor replaced or closed it."""
        return isinstance(self._killed_for, InternalError)


def explain_exit(code: int) -> EngineDiedError:
    """Returns the error for an engine that ended with `code`: negative for a signal, as subprocess tells it."""
    if code >= 0:
        hint = " (what an out-of-memory kill inside a container looks like)" if code == 137 else ""
        return EngineDiedError(f"the engine process ended with exit code {code}{hint}", exit_code=code)
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    hints = {"SIGKILL": ", often the kernel's out-of-memory killer", "SIGSEGV": ", a fault in native code"}
    return EngineDiedError(f"the engine process was ended by {name}{hints.get(name, '')}", signal=name, exit_code=code)


def _hung(watch: ProgressWatch) -> EngineHungError:
    return EngineHungError(
        f"the engine made no progress for {watch.idle_s:.1f} s while {watch.phase_name}, where {watch.budget_s:.1f} s "
        "are its budget; it was killed and is replaced",
        phase=watch.phase_name,
        idle_seconds=f"{watch.idle_s:.1f}",
        budget_seconds=f"{watch.budget_s:.1f}",
    )


def _progress_of(event: engine_pb2.EngineEvent) -> generation_pb2.Progress | None:
    if event.HasField("load") and event.load.HasField("progress"):
        return event.load.progress
    if event.HasField("run") and event.run.HasField("progress"):
        return event.run.progress
    return None
