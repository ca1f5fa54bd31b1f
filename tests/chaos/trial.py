"""One run from start to verdict: a cluster, clients at work, a nemesis, then peace, evidence and judgement.

Knows nothing of how it is reported. Invariant: the verdict comes after every process is well again and every client
has seen its jobs end, or given up on them.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.chaos.checker import Finding, check, summarise
from tests.chaos.clients import Client
from tests.chaos.clock import find_library
from tests.chaos.cluster import Cluster, Size, run_cluster
from tests.chaos.evidence import gather
from tests.chaos.history import History
from tests.chaos.nemesis import Nemesis
from tests.chaos.schedule import Deed, make_schedule
from tests.chaos.work import Task, make_task


@dataclass(frozen=True)
class Trial:
    """What is to be run. The same trial has the same jobs and the same faults at the same times.

    Args:
        seed: of jobs and faults.
        minutes: how long new jobs are asked for, and faults come.
        num_jobs: most jobs; they are spread over the time.
        num_hands: jobs that clients see through at once.
        bound_s: how long one job may take.
        period_s: between faults, on average; 0 for none.
        kinds: of faults; empty for all.
    """

    seed: int
    minutes: float
    num_jobs: int
    num_hands: int = 32
    bound_s: float = 120.0
    period_s: float = 1.0
    size: Size = field(default_factory=Size)
    kinds: tuple[str, ...] = ()

    def schedule(self) -> Iterator[Deed]:
        """Yields the faults."""
        if not self.period_s:
            return
        size, seconds = self.size, self.minutes * 60
        for deed in make_schedule(self.seed, seconds, size.num_gateways, size.num_workers, size.lease_s, self.period_s):
            if not self.kinds or deed.kind in self.kinds:
                yield deed


@dataclass(frozen=True)
class Verdict:
    """What came of it."""

    findings: list[Finding]
    figures: dict[str, Any]
    faults: dict[str, int]
    history: History


async def run_trial(trial: Trial, folder: Path, *, may_fetch: bool = False) -> Verdict:
    """Runs a trial; its logs, history and data stay in `folder`."""
    library = find_library(may_fetch=may_fetch)
    folder.mkdir(parents=True, exist_ok=True)
    async with run_cluster(trial.size, folder, library) as cluster:
        history = History(folder / "history.jsonl")
        began_at = time.monotonic()
        work = _Work(trial, cluster, history)
        nemesis = Nemesis(cluster, history)
        hands = asyncio.gather(*(work.hand(number) for number in range(trial.num_hands)))
        try:
            await nemesis.run(trial.schedule())
        finally:
            await nemesis.heal()
        history.tell("peace")
        await hands
        seconds = time.monotonic() - began_at
        await _settle(cluster)
        evidence = await gather(cluster)
    findings = check(work.tasks, history, evidence)
    figures = summarise(work.tasks, evidence) | _timings(history)
    figures["adoptions"] = sum(gateway.log.count('"job_adopted"') for gateway in cluster.gateways)
    figures |= {"seconds": round(seconds, 1), "clock_steps": library is not None, "restarts": _restarts(cluster)}
    history.close()
    return Verdict(findings, figures, dict(sorted(nemesis.done.items())), history)


class _Work:
    """The jobs that are still to be asked for, and who asks."""

    def __init__(self, trial: Trial, cluster: Cluster, history: History) -> None:
        self.tasks: dict[int, Task] = {}
        self._trial = trial
        self._history = history
        self._addresses = [gateway.address for gateway in cluster.gateways]
        self._pause_s = trial.minutes * 60 / trial.num_jobs

    async def hand(self, number: int) -> None:
        """Sees job after job through, none before its time."""
        trial = self._trial
        dice = random.Random(f"hand {trial.seed} {number}")
        client = Client(f"client-{number}", self._addresses, self._history, dice, lambda: trial.bound_s)
        try:
            while (task := self._next()) is not None:
                await asyncio.sleep(max(0.0, task.number * self._pause_s - self._history.now_s))
                await client.do(task)
        finally:
            await client.close()

    def _next(self) -> Task | None:
        number = len(self.tasks)
        if number >= self._trial.num_jobs or self._history.now_s > self._trial.minutes * 60:
            return None
        task = self.tasks[number] = make_task(self._trial.seed, number)
        return task


async def _settle(cluster: Cluster) -> None:
    """Lets gateways delete what a late claim left, and stops them, so that nothing moves while evidence is read."""
    await asyncio.sleep(2 * cluster.size.lease_s)
    await asyncio.gather(*(gateway.terminate() for gateway in cluster.gateways))


def _timings(history: History) -> dict[str, Any]:
    """Seconds from the first wish to the end that the client was told."""
    wanted: dict[int, float] = {}
    took = []
    for line in history.lines("wanted", "ended"):
        if line["what"] == "wanted":
            wanted[line["task"]] = line["t"]
        else:
            took.append(line["t"] - wanted[line["task"]])
    took.sort()
    return {
        f"seconds_to_end_{name}": round(took[min(len(took) - 1, int(share * len(took)))], 2)
        for name, share in (("p50", 0.5), ("p99", 0.99), ("max", 1.0))
        if took
    }


def _restarts(cluster: Cluster) -> int:
    return sum(process.num_starts - 1 for process in cluster.processes)
