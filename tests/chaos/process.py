"""One process that may be killed, stopped and started again at the same address.

Knows nothing of what it runs. Invariant: it does not outlive the suite, however that ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import resource
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from services.gateway.store.server import SHIM

ROOT = Path(__file__).resolve().parents[2]
RESTART_PAUSE_S = 0.2


class Process:
    """A service, or Redis.

    Args:
        name: for people, and its log's name.
        command: program and arguments; "{port}" in them stands for the port.
        environment: variables beside those of the suite; "{port}" as above.
        folder: where its log goes. The log is written here, from a pipe, so that a full disk is the service's alone.
    """

    def __init__(self, name: str, command: Sequence[str], environment: Mapping[str, str], folder: Path) -> None:
        self.name = name
        self.port = 0
        self.num_starts = 0
        self._command = list(command)
        self._environment = dict(environment)
        self._log_path = folder / f"{name}.log"
        self._process: asyncio.subprocess.Process | None = None
        self._pump: asyncio.Task[None] | None = None

    @property
    def address(self) -> str:
        """Where it serves, once it was started."""
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """Of the running process; 0 where none runs."""
        return self._process.pid if self._process is not None and self._process.returncode is None else 0

    @property
    def log(self) -> str:
        """All that it said, over all its lives."""
        return self._log_path.read_text() if self._log_path.exists() else ""

    async def start(self, limit_s: float = 90.0) -> None:
        """Starts it, again and again as an init system would, until it serves."""
        async with asyncio.timeout(limit_s):
            while not await self._try_to_start():
                await asyncio.sleep(RESTART_PAUSE_S)

    def send(self, number: signal.Signals) -> bool:
        """Sends a signal; False where nothing runs."""
        if not self.pid:
            return False
        os.kill(self.pid, number)
        return True

    async def wait(self) -> int:
        """Returns the exit status once it has ended."""
        assert self._process is not None
        code = await self._process.wait()
        if self._pump is not None:
            await self._pump
        return code

    async def kill(self) -> None:
        """kill -9, and gone when this returns."""
        if self.send(signal.SIGKILL):
            await self.wait()

    async def terminate(self) -> int:
        """SIGTERM; returns the exit status."""
        self.send(signal.SIGTERM)
        return await self.wait()

    def limit_files(self, size_bytes: int | None) -> None:
        """Lets no file grow beyond `size_bytes`, as a full disk would; None lifts the limit."""
        if self.pid:
            with contextlib.suppress(ProcessLookupError):
                _, hard = resource.prlimit(self.pid, resource.RLIMIT_FSIZE)
                resource.prlimit(self.pid, resource.RLIMIT_FSIZE, (hard if size_bytes is None else size_bytes, hard))

    async def _try_to_start(self) -> bool:
        fill = {"{port}": str(self.port)}
        self.num_starts += 1
        process = self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", "-S", "-c", SHIM, str(os.getpid())),
            *(_filled(part, fill) for part in self._command),
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)}
            | {name: _filled(value, fill) for name, value in self._environment.items()},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
        )
        serving = asyncio.Event()
        self._pump = asyncio.create_task(self._keep_log(process, serving), name=f"log-{self.name}")
        waits = [asyncio.create_task(serving.wait()), asyncio.create_task(process.wait())]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        return serving.is_set() and process.returncode is None

    async def _keep_log(self, process: asyncio.subprocess.Process, serving: asyncio.Event) -> None:
        assert process.stdout is not None
        with self._log_path.open("ab", buffering=0) as file:
            while line := await process.stdout.readline():
                file.write(line)
                if not serving.is_set() and self._tells_address(line):
                    serving.set()

    def _tells_address(self, line: bytes) -> bool:
        if b"Ready to accept connections" in line:  # what Redis says, when it has read its files
            return True
        with contextlib.suppress(ValueError):
            event = json.loads(line)
            if event.get("event") == "serving":
                self.port = int(event["address"].rpartition(":")[2])
                return True
        return False


def _filled(text: str, values: Mapping[str, str]) -> str:
    for name, value in values.items():
        text = text.replace(name, value)
    return text
