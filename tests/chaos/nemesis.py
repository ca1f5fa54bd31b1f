"""Does to a cluster what a schedule says.

Knows nothing of jobs, but for one thing: it strikes no job's engine twice, for a job whose engine died twice is poison
by contract, and then the suite could not tell an innocent job that was blamed from one that was rightly so.
Invariant: after `heal` every process runs, every wire is good, every clock is right and every disk has room.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterable

import grpc

from darkroom.rpc.channels import open_channel
from darkroom.v1 import worker_service_pb2
from darkroom.v1.worker_service_pb2_grpc import WorkerServiceStub
from tests.chaos.cluster import Cluster
from tests.chaos.history import History
from tests.chaos.process import Process
from tests.chaos.proxy import Link
from tests.chaos.schedule import Deed


class Nemesis:
    """One run's."""

    def __init__(self, cluster: Cluster, history: History) -> None:
        self.done: Counter[str] = Counter()
        self._cluster = cluster
        self._history = history
        self._hit: set[object] = set()
        self._struck: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._failures: list[BaseException] = []

    async def run(self, schedule: Iterable[Deed]) -> None:
        """Does every deed at its time; those that last overlap."""
        began_at = time.monotonic()
        for deed in schedule:
            await asyncio.sleep(max(0.0, began_at + deed.at_s - time.monotonic()))
            self._begin(deed)

    async def heal(self) -> None:
        """Waits until every deed is over, and makes sure that everything runs. Raises what a deed failed with."""
        while self._tasks:
            await asyncio.wait(self._tasks)
        for process in self._cluster.processes:
            if not process.pid:
                await process.start()
        if self._failures:
            raise self._failures[0]

    def _begin(self, deed: Deed) -> None:
        task = asyncio.create_task(self._do(deed), name=deed.kind)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (failure := task.exception()) is not None:
            self._failures.append(failure)

    async def _do(self, deed: Deed) -> None:
        verb, _, what = deed.kind.partition(" ")
        if verb == "kill" and what in ("all gateways", "everything"):
            await self._kill_many(deed, what)
        elif what in ("gateway", "worker", "redis", "planner") and verb in ("kill", "term", "stop"):
            await self._disturb(verb, self._process(what, deed), deed)
        elif what == "engine":
            await self._strike(verb, deed)
        elif verb in ("cut", "stall", "slow"):
            await self._disturb_link(verb, self._link(what, deed), deed)
        elif deed.kind == "full disk":
            await self._fill_disk(self._cluster.gateways[deed.gateway], deed)
        elif deed.kind == "step clock":
            await self._step_clock(deed)

    @contextlib.asynccontextmanager
    async def _hitting(self, target: object, deed: Deed) -> AsyncIterator[bool]:
        """One thing at a time to one target; what comes meanwhile is left out, and told."""
        if target in self._hit:
            self._history.tell("skipped", kind=deed.kind)
            yield False
            return
        self._hit.add(target)
        self.done[deed.kind] += 1
        gateway, worker, seconds = deed.gateway, deed.worker, round(deed.seconds, 2)
        self._history.tell("fault", kind=deed.kind, gateway=gateway, worker=worker, seconds=seconds)
        try:
            yield True
        finally:
            self._hit.discard(target)
            self._history.tell("fault over", kind=deed.kind, gateway=gateway, worker=worker)

    async def _disturb(self, verb: str, process: Process, deed: Deed) -> None:
        async with self._hitting(process, deed) as is_hitting:
            if not is_hitting or not process.pid:
                return
            if verb == "stop":
                process.send(signal.SIGSTOP)
                await asyncio.sleep(deed.seconds)
                process.send(signal.SIGCONT)
                return
            await (process.kill() if verb == "kill" else self._terminate(process))
            await asyncio.sleep(deed.seconds)
            await process.start()

    async def _terminate(self, process: Process) -> None:
        code = await process.terminate()
        self._history.tell("terminated", name=process.name, code=code)

    async def _kill_many(self, deed: Deed, what: str) -> None:
        cluster = self._cluster
        victims = cluster.gateways if what == "all gateways" else cluster.processes
        free = [victim for victim in victims if victim not in self._hit]
        async with contextlib.AsyncExitStack() as stack:
            for victim in free[1:]:
                self._hit.add(victim)
                stack.callback(self._hit.discard, victim)
            async with self._hitting(free[0] if free else cluster, deed):
                await asyncio.gather(*(victim.kill() for victim in free))
                await asyncio.sleep(deed.seconds)
                await asyncio.gather(*(victim.start() for victim in free))

    async def _strike(self, verb: str, deed: Deed) -> None:
        """Holds the engine still, looks whose it is, and kills it or lets it wait; a job is struck once at most."""
        worker = self._cluster.workers[deed.worker]
        async with self._hitting(worker, deed) as is_hitting:
            pid, jobs = await engine_of(worker) if is_hitting else (0, [])
            with contextlib.suppress(ProcessLookupError):
                if not pid:
                    return
                os.kill(pid, signal.SIGSTOP)
                _, jobs = await engine_of(worker)
                if self._struck.intersection(jobs):
                    os.kill(pid, signal.SIGCONT)
                    return
                self._struck.update(jobs)
                self._history.tell("struck", jobs=jobs)
                if verb == "kill":
                    os.kill(pid, signal.SIGKILL)
                    return
                await asyncio.sleep(deed.seconds)
                os.kill(pid, signal.SIGCONT)

    async def _disturb_link(self, verb: str, link: Link, deed: Deed) -> None:
        async with self._hitting(link, deed) as is_hitting:
            if not is_hitting:
                return
            if verb == "slow":
                link.delay_s = deed.amount
            else:
                getattr(link, verb)()
            await asyncio.sleep(deed.seconds)
            link.heal()

    async def _fill_disk(self, gateway: Process, deed: Deed) -> None:
        async with self._hitting((gateway, "disk"), deed) as is_hitting:
            if is_hitting:
                gateway.limit_files(0)
                await asyncio.sleep(deed.seconds)
                gateway.limit_files(None)

    async def _step_clock(self, deed: Deed) -> None:
        name = "redis" if deed.worker % 2 else f"gateway-{deed.gateway}"
        clock = self._cluster.clocks[name]
        if clock.is_real:
            self._history.tell("skipped", kind=deed.kind)
            return
        async with self._hitting(clock, deed) as is_hitting:
            if is_hitting:
                clock.step(deed.amount)
                await asyncio.sleep(deed.seconds * 10)
                clock.step(0.0)

    def _process(self, what: str, deed: Deed) -> Process:
        cluster = self._cluster
        if what == "gateway":
            return cluster.gateways[deed.gateway]
        return cluster.workers[deed.worker] if what == "worker" else getattr(cluster, what)

    def _link(self, what: str, deed: Deed) -> Link:
        if what == "redis":
            return self._cluster.redis_links[deed.gateway]
        return self._cluster.worker_links[deed.gateway][deed.worker]


async def engine_of(worker: Process) -> tuple[int, list[str]]:
    """The worker's engine process and the jobs that it has; 0 where it does not answer."""
    if not worker.pid:
        return 0, []
    async with open_channel(worker.address) as channel:
        try:
            answer = await WorkerServiceStub(channel).GetStatus(worker_service_pb2.GetStatusRequest(), timeout=2)
        except grpc.aio.AioRpcError:
            return 0, []
    return answer.status.engine_pid, list(answer.status.job_ids)
