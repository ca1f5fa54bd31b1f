"""One service as a child process: started on a leash, awaited until it serves, stopped.

Knows nothing of the other services, nor of when to restart. Invariant: at most one process at a time.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from darkroom.rpc.channels import open_channel
from services.stack.log_file import LogFile

LEASH = Path(__file__).with_name("leash.py")
POLL_S = 0.03
HEALTH_CALL_S = 2.0
# A service that serves has started what it needs; from then on its readiness is a matter of a moment.
HEALTHY_S = 30.0
# What a service gets to stop beyond the grace that it gives to its calls.
STOP_MARGIN_S = 10.0


class StartError(Exception):
    """A service did not come up. The text is for people."""


@dataclass(frozen=True)
class Service:
    """How one service is started.

    Args:
        name: for people and for the log's name: "gateway", "worker-0".
        command: the program with its arguments.
        listen_variable: the setting that holds its address.
        listen: the address to ask for at first; a restart asks for the one that was got.
        environment: its settings.
        detail: one more word for people, such as its device.
    """

    name: str
    command: Sequence[str]
    listen_variable: str
    listen: str
    environment: Mapping[str, str] = field(default_factory=dict)
    detail: str = ""


class Child:
    """The running process of a service."""

    def __init__(self, service: Service, log_folder: Path, grace_s: float, lock: int | None = None) -> None:
        self.service = service
        self.log = LogFile(log_folder / f"{service.name}.log")
        self.address = ""
        self.pid = 0
        self.started_at_s = 0.0
        self.ready_after_s = 0.0
        self._grace_s = grace_s
        # Kept open by the leash, so that the data folder stays held until the last process of a dead stack is gone.
        self._kept_open = () if lock is None else (lock,)
        self._process: asyncio.subprocess.Process | None = None

    async def start(self, limit_s: float) -> None:
        """Starts the process and returns once it serves.

        Raises:
            StartError: it ended or said nothing in time.
        """
        variables = {**os.environ, **self.service.environment}
        variables[self.service.listen_variable] = self.address or self.service.listen
        descriptor = self.log.open()
        try:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-I", "-S", str(LEASH), str(os.getpid()), str(self._grace_s + STOP_MARGIN_S)),
                *self.service.command,
                env=variables,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=descriptor,
                stderr=descriptor,
                pass_fds=self._kept_open,
                # Ctrl-C in the terminal reaches the stack alone, which then stops its children in order.
                start_new_session=True,
            )
        finally:
            os.close(descriptor)
        self.pid = self._process.pid
        self.started_at_s = time.monotonic()
        self.address = await self._wait_for_address(limit_s)

    async def wait_until_healthy(self, limit_s: float) -> None:
        """Returns once the service's own health says SERVING.

        Raises:
            StartError: it ended or did not say so in time.
        """
        limit_s = min(limit_s, self.age_s + HEALTHY_S)
        async with open_channel(self.address) as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            while not await _is_serving(stub):
                self._raise_if_ended()
                if self.age_s > limit_s:
                    raise StartError(self._tell(f"serves, but says that it is not ready; {limit_s:.0f} s have passed"))
                await asyncio.sleep(POLL_S)
        self.ready_after_s = self.age_s

    async def wait_for_end(self) -> int:
        """Returns the exit status once the process and all that it started is gone."""
        return await self._process.wait() if self._process is not None else 0

    async def stop(self, number: int = signal.SIGTERM) -> None:
        """Asks the process to stop (SIGQUIT: kills it) and returns once it is gone."""
        if self._process is None or self._process.returncode is not None:
            return
        self._process.send_signal(number)
        await self._process.wait()

    @property
    def age_s(self) -> float:
        """Seconds since the process was started."""
        return time.monotonic() - self.started_at_s

    def describe_end(self) -> str:
        """Says for people how the process ended, with its last words."""
        code = (self._process.returncode if self._process is not None else None) or 0
        # A leash exits with 128 + the signal of its service, as shells do; its own signal is negative.
        number = code - 128 if code > 128 else max(-code, 0)
        return self._tell(f"was ended by {signal.Signals(number).name}" if number else f"exited with status {code}")

    async def _wait_for_address(self, limit_s: float) -> str:
        while True:
            address = self.log.find_address()
            if address is not None:
                return address
            self._raise_if_ended()
            if self.age_s > limit_s:
                await self.stop(signal.SIGQUIT)
                raise StartError(self._tell(f"did not serve within {limit_s:.0f} s"))
            await asyncio.sleep(POLL_S)

    def _raise_if_ended(self) -> None:
        if self._process is not None and self._process.returncode is not None:
            raise StartError(self.describe_end())

    def _tell(self, what: str) -> str:
        words = "".join(f"\n    {line}" for line in self.log.last_words())
        return f"{self.service.name} {what}; its log is {self.log.path}{words}"


async def _is_serving(stub: health_pb2_grpc.HealthStub) -> bool:
    try:
        answer = await stub.Check(health_pb2.HealthCheckRequest(), timeout=HEALTH_CALL_S)
    except grpc.aio.AioRpcError:
        return False
    return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)
