"""The engine's end of the protocol: one process, one inbox thread, one thread that works.

Any engine is an `Engine` given to `serve`; this file knows nothing of what it does, and imports no torch. Invariants:
every command ends with exactly one `ended`; the process ends within a second of its supervisor, even while native code
holds the interpreter.
"""

from __future__ import annotations

import argparse
import ctypes
import functools
import os
import queue
import signal
import socket
import sys
import threading
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from darkroom.rpc.errors import DarkroomError, InternalError, error_to_message
from darkroom.rpc.logs import configure_logs, log
from darkroom.v1 import device_pb2, engine_pb2, plan_pb2, worker_pb2
from services.worker.config import WorkerSettings
from services.worker.engine.batches import make_pictures
from services.worker.engine.outbox import Outbox
from services.worker.engine.reporting import ItemReporter, LoadReporter
from services.worker.wire import receive_message

PR_SET_PDEATHSIG = 1  # prctl(2)


class Engine(ABC):
    """What an engine does; every method is called on the one working thread, one at a time."""

    @abstractmethod
    def open(self, settings: WorkerSettings) -> device_pb2.Device:
        """Takes hold of the device and reads it. Called once."""

    @abstractmethod
    def read_device(self) -> device_pb2.Device:
        """Takes a settled reading."""

    @abstractmethod
    def load(self, plan: plan_pb2.Plan, report: LoadReporter) -> worker_pb2.LoadedModel:
        """Executes the plan or a fallback that its failure triggers; on failure nothing stays loaded."""

    def check(self, plan: plan_pb2.Plan, report: LoadReporter) -> None:
        """Has the plan's weights here, and raises what `load` would fail with as far as that can be told without
        touching what is loaded."""
        return None

    @abstractmethod
    def unload(self) -> None:
        """Gives all memory back; nothing happens when nothing is loaded."""

    def most_at_once(self) -> tuple[int, str]:
        """How many pictures one call of `generate` may make on what is loaded, and why not more."""
        return 1, "this engine makes one picture a call"

    @abstractmethod
    def generate(self, items: Sequence[worker_pb2.RunItem], reports: Sequence[ItemReporter]) -> None:
        """Makes the pictures of items of one size, steps and guidance; hands each to its report's `finish` or `fail`.

        What it raises concerns every item that is not over.
        """

    def explain(self, failure: Exception) -> DarkroomError:
        """Returns our error for a foreign exception: INTERNAL, unless the engine knows better."""
        traceback.print_exception(failure, file=sys.stderr)
        return InternalError(f"the engine failed with {type(failure).__name__}: {str(failure)[:300]}")


class Cancellations:
    """What was asked to stop. Written by the inbox thread, read by the working one."""

    def __init__(self) -> None:
        self._targets: set[tuple[int, str]] = set()
        self._lock = threading.Lock()

    def add(self, cancel: engine_pb2.EngineCancel) -> None:
        """Notes a cancel."""
        with self._lock:
            self._targets.add((cancel.target_id, cancel.job_id))

    def covers(self, command_id: int, job_id: str = "") -> bool:
        """True if the command, or this item of it, was asked to stop."""
        return (command_id, "") in self._targets or (command_id, job_id) in self._targets

    def forget(self, command_id: int) -> None:
        """The command is over."""
        with self._lock:
            self._targets = {target for target in self._targets if target[0] != command_id}


class EngineLoop:
    """Reads commands on a thread of its own and executes them on the calling one."""

    def __init__(self, make_engine: Callable[[], Engine], link: socket.socket) -> None:
        self._link = link
        self._outbox = Outbox(link, _end)
        self._commands: queue.SimpleQueue[engine_pb2.EngineCommand] = queue.SimpleQueue()
        self._cancelled = Cancellations()
        # Before the engine is made, which imports for seconds: a supervisor that goes meanwhile is noticed.
        threading.Thread(target=self._read_inbox, name="inbox", daemon=True).start()
        self._engine = make_engine()

    def run(self, settings: WorkerSettings) -> None:
        """Says hello and works until the supervisor goes."""
        device = self._engine.open(settings)
        self._outbox.send(engine_pb2.EngineEvent(hello=engine_pb2.EngineHello(device=device)))
        while True:
            self._execute(self._commands.get())

    def _read_inbox(self) -> None:
        try:
            while (command := receive_message(self._link, engine_pb2.EngineCommand)) is not None:
                if command.HasField("cancel"):
                    self._cancelled.add(command.cancel)
                else:
                    self._commands.put(command)
        finally:
            _end()

    def _execute(self, command: engine_pb2.EngineCommand) -> None:
        ended = engine_pb2.EngineEnded()
        try:
            getattr(self, f"_{command.WhichOneof('command')}")(command, ended)
        except DarkroomError as failure:
            ended.error.CopyFrom(error_to_message(failure))
        except Exception as failure:  # the process boundary: the supervisor gets every failure as data
            ended.error.CopyFrom(error_to_message(self._engine.explain(failure)))
        self._cancelled.forget(command.command_id)
        self._outbox.send(engine_pb2.EngineEvent(command_id=command.command_id, ended=ended))

    def _load(self, command: engine_pb2.EngineCommand, ended: engine_pb2.EngineEnded) -> None:
        send = self._answering(command)
        reporter = LoadReporter(send, lambda: self._cancelled.covers(command.command_id))
        reporter.check()
        loaded = self._engine.load(command.load.plan, reporter)
        send(engine_pb2.EngineEvent(load=worker_pb2.LoadEvent(loaded=loaded)))

    def _check(self, command: engine_pb2.EngineCommand, ended: engine_pb2.EngineEnded) -> None:
        reporter = LoadReporter(self._answering(command), lambda: self._cancelled.covers(command.command_id))
        reporter.check()
        self._engine.check(command.check.plan, reporter)

    def _unload(self, command: engine_pb2.EngineCommand, ended: engine_pb2.EngineEnded) -> None:
        self._engine.unload()
        ended.device.CopyFrom(self._engine.read_device())

    def _read_device(self, command: engine_pb2.EngineCommand, ended: engine_pb2.EngineEnded) -> None:
        ended.device.CopyFrom(self._engine.read_device())

    def _generate(self, command: engine_pb2.EngineCommand, ended: engine_pb2.EngineEnded) -> None:
        def report_of(job_id: str) -> ItemReporter:
            is_cancelled = functools.partial(self._cancelled.covers, command.command_id, job_id)
            return ItemReporter(job_id, self._answering(command), is_cancelled)

        make_pictures(self._engine, command.generate.items, report_of)

    def _answering(self, command: engine_pb2.EngineCommand) -> Callable[[engine_pb2.EngineEvent], None]:
        phase: int | None = None

        def send(event: engine_pb2.EngineEvent) -> None:
            nonlocal phase
            event.command_id = command.command_id
            # The supervisor's patience is that of a phase, which it must learn of even if the next thing is a hang.
            told = event.run.progress.phase if event.HasField("run") and event.run.HasField("progress") else None
            self._outbox.send(event, can_wait=told is not None and told == phase)
            phase = told

        return send


def serve(make_engine: Callable[[], Engine]) -> None:
    """Main of an engine process: reads the arguments that the supervisor gave, and works until it goes."""
    parser = argparse.ArgumentParser(description="An engine process; started by the worker, not by hand.")
    parser.add_argument("--socket", type=int, required=True, help="file descriptor of the supervisor's socket")
    parser.add_argument("--settings", required=True, help="the worker's settings as JSON")
    arguments = parser.parse_args()
    link = socket.socket(fileno=arguments.socket)
    _end_with_supervisor()
    settings = WorkerSettings.model_validate_json(arguments.settings)
    configure_logs("engine", settings.log_level)
    log.debug("engine_process", pid=os.getpid())
    EngineLoop(make_engine, link).run(settings)


def _end() -> None:
    """Ends this process at once: nobody is left to tell anything, and what the device holds goes with it."""
    os._exit(0)


def _end_with_supervisor() -> None:
    """Has the kernel kill this process when its supervisor ends, and leaves stopping to the supervisor."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
