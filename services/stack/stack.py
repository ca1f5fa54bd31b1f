"""Runs the services of one machine: starts them in order, restarts what dies, stops them in order.

Knows nothing of processes' inner life. Invariant: when `run` returns, nothing that it started is running.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from services.stack.child import Child, Service, StartError
from services.stack.record import write_record

FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 10.0
# After this many quick ends in a row a service is given up, and the stack with it.
MAX_QUICK_ENDS = 6
# A process that lived this long has proved itself; its end is not counted as quick.
PROVEN_S = 60.0


# Gets the addresses of the planner and of the workers.
GatewayMaker = Callable[[str, Sequence[str]], Service]


class Reporter(Protocol):
    """Tells people what happens."""

    def starting(self, names: Sequence[str]) -> None: ...
    def serving(self, child: Child) -> None: ...
    def ready(self, gateway: Child, seconds: float) -> None: ...
    def died(self, child: Child, pause_s: float) -> None: ...
    def is_back(self, child: Child) -> None: ...
    def stopping(self) -> None: ...
    def failed(self, text: str) -> None: ...


class Stack:
    """The children and their order.

    Args:
        planner: no prerequisites.
        workers: no prerequisites.
        make_gateway: gets the addresses of the planner and of the workers.
        others: no prerequisites, and nobody's.
        data_dir: where logs and stack.json go; already held.
        reporter: told of everything.
    """

    def __init__(
        self,
        planner: Service,
        workers: Sequence[Service],
        make_gateway: GatewayMaker,
        data_dir: Path,
        reporter: Reporter,
        *,
        others: Sequence[Service] = (),
        grace_s: float,
        start_s: float,
        lock: int | None = None,
    ) -> None:
        self._make_child = partial(Child, log_folder=data_dir / "logs", grace_s=grace_s, lock=lock)
        self._planner = self._make_child(planner)
        self._workers = [self._make_child(worker) for worker in workers]
        self._others = [self._make_child(other) for other in others]
        self._gateway: Child | None = None
        self._make_gateway = make_gateway
        self._data_dir = data_dir
        self._reporter = reporter
        self._start_s = start_s
        self._stop = asyncio.Event()
        self._failure = ""

    async def run(self) -> int:
        """Runs until a signal arrives or a service is given up. Returns the exit status: 0 after a signal."""
        with self._listening_to_signals():
            async with self._guarded():
                started = asyncio.create_task(self._start(), name="start")
                stopped = asyncio.create_task(self._stop.wait(), name="stop")
                await asyncio.wait((started, stopped), return_when=asyncio.FIRST_COMPLETED)
                if started.done():
                    await started
                    await self._watch_over_children(stopped)
                for task in (started, stopped):
                    task.cancel()
                await asyncio.gather(started, stopped, return_exceptions=True)
        if self._failure:
            self._reporter.failed(self._failure)
        return 1 if self._failure else 0

    async def _start(self) -> None:
        began_s = time.monotonic()
        first = [self._planner, *self._workers, *self._others]
        self._reporter.starting([child.service.name for child in first])
        await _all(self._bring_up(child) for child in first)
        gateway = self._make_gateway(self._planner.address, [worker.address for worker in self._workers])
        self._gateway = self._make_child(gateway)
        self._reporter.starting([gateway.name])
        await self._bring_up(self._gateway)
        self._write_record()
        self._reporter.ready(self._gateway, time.monotonic() - began_s)

    async def _bring_up(self, child: Child) -> None:
        await child.start(self._start_s)
        await child.wait_until_healthy(self._start_s)
        self._reporter.serving(child)

    async def _watch_over_children(self, stopped: asyncio.Task[bool]) -> None:
        """Returns when a signal has arrived; raises when a child is given up."""
        keepers = [asyncio.create_task(self._keep(child), name=child.service.name) for child in self._children()]
        try:
            await asyncio.wait((stopped, *keepers), return_when=asyncio.FIRST_COMPLETED)
            for keeper in keepers:
                if keeper.done():
                    await keeper
        finally:
            for keeper in keepers:
                keeper.cancel()
            await asyncio.gather(*keepers, return_exceptions=True)

    async def _keep(self, child: Child) -> None:
        """Restarts a child whenever it ends, on the address that it had."""
        num_quick_ends = 0
        while True:
            await child.wait_for_end()
            num_quick_ends = 1 if child.age_s >= PROVEN_S else num_quick_ends + 1
            if num_quick_ends >= MAX_QUICK_ENDS:
                raise StartError(f"{child.describe_end()}\n{num_quick_ends} times in a row: giving up")
            pause_s = min(FIRST_PAUSE_S * 2 ** (num_quick_ends - 1), LONGEST_PAUSE_S)
            self._reporter.died(child, pause_s)
            await asyncio.sleep(pause_s)
            with contextlib.suppress(StartError):
                await child.start(self._start_s)
                await child.wait_until_healthy(self._start_s)
                self._write_record()
                self._reporter.is_back(child)

    @contextlib.asynccontextmanager
    async def _guarded(self) -> AsyncIterator[None]:
        """Whatever happens inside, every child is stopped afterwards."""
        try:
            yield
        except StartError as failure:
            self._failure = str(failure)
        finally:
            self._reporter.stopping()
            await self._stop_all()

    async def _stop_all(self) -> None:
        """In order: nobody hands out work, then nobody does it, then nobody plans it."""
        self._stop.clear()
        groups = [[self._gateway] if self._gateway else [], [*self._workers, *self._others], [self._planner]]
        for group in groups:
            await asyncio.gather(*(self._stop_or_kill(child) for child in group))

    async def _stop_or_kill(self, child: Child) -> None:
        """A second signal kills instead of waiting for the grace period."""
        stopping = asyncio.create_task(child.stop())
        hurried = asyncio.create_task(self._stop.wait())
        await asyncio.wait((stopping, hurried), return_when=asyncio.FIRST_COMPLETED)
        hurried.cancel()
        if not stopping.done():
            await child.stop(signal.SIGQUIT)
        await stopping

    def _children(self) -> list[Child]:
        return [self._planner, *self._workers, *self._others, *([self._gateway] if self._gateway else [])]

    def _write_record(self) -> None:
        assert self._gateway is not None
        record = {
            "pid": os.getpid(),
            "gateway": _describe(self._gateway),
            "workers": [_describe(worker) for worker in self._workers],
            "planner": _describe(self._planner),
            "others": {other.service.name: _describe(other) for other in self._others},
        }
        write_record(self._data_dir, record)

    @contextlib.contextmanager
    def _listening_to_signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
        for number in numbers:
            loop.add_signal_handler(number, self._stop.set)
        try:
            yield
        finally:
            for number in numbers:
                loop.remove_signal_handler(number)


async def _all(coroutines: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Awaits all; the first failure cancels the others and is raised as it is."""
    tasks = [asyncio.create_task(coroutine) for coroutine in coroutines]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _describe(child: Child) -> dict[str, Any]:
    return {"address": child.address, "pid": child.pid, "log": str(child.log.path)}
