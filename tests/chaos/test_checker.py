"""The checker finds nothing in a good run, and each kind of damage where it was done."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from darkroom.v1 import generation_pb2, job_pb2, plan_pb2
from tests.chaos.checker import check
from tests.chaos.evidence import Evidence, JobEvidence
from tests.chaos.history import History
from tests.chaos.work import Task, make_task
from tests.engines.rehearsal import paint

JOB_ID = "0123456789ab" + "d" * 12
QUEUED, RUNNING, SUCCEEDED = job_pb2.JOB_STATE_QUEUED, job_pb2.JOB_STATE_RUNNING, job_pb2.JOB_STATE_SUCCEEDED
STEPS = 3


class GoodRun:
    """One job that went well, as clients, store, disk and engine tell it."""

    def __init__(self) -> None:
        self.task: Task = next(task for task in (make_task(1, number) for number in range(99)) if self.is_plain(task))
        self.task.request.steps = STEPS
        data = paint(self.task.request, plan_pb2.Plan())
        self.sha256 = hashlib.sha256(data).hexdigest()
        output = generation_pb2.Output(size_bytes=len(data), sha256=self.sha256)
        job = job_pb2.Job(id=JOB_ID, state=SUCCEEDED, request=self.task.request, output=output, last_sequence=6)
        job.tenant = self.task.tenant
        steps = [generation_pb2.Progress(completed=step, total=STEPS, fraction=step / STEPS) for step in (1, 2, 3)]
        progress = [(2 + step, None, told) for step, told in enumerate(steps, 1)]
        events: list[Any] = [(1, QUEUED, None), (2, RUNNING, None), *progress, (6, SUCCEEDED, None)]
        files = {f"{JOB_ID}-7": self.sha256}
        self.job = JobEvidence(job, 7, 1, 0, 0, events, files, {100: [1, 2, 3]})
        self.evidence = Evidence({JOB_ID: self.job}, [])
        stream = [[1, "job", QUEUED], [2, "job", RUNNING], *([2 + step, 6, 0.1 * step, step, 3] for step in (1, 2, 3))]
        self.told: list[tuple[str, dict[str, Any]]] = [
            ("accepted", {"job": JOB_ID}),
            ("watched", {"events": [*stream, [6, "job", SUCCEEDED]]}),
            ("ended", {"job": JOB_ID, "state": "SUCCEEDED", "reason": ""}),
            ("read", {"job": JOB_ID, "size_bytes": len(data), "sha256": self.sha256}),
        ]

    @staticmethod
    def is_plain(task: Task) -> bool:
        return (task.kind, task.way) == ("plain", "submit")

    @property
    def stream(self) -> list[list[Any]]:
        """What the client was told in its one watch."""
        events: list[list[Any]] = self.told[1][1]["events"]
        return events

    def rules(self, folder: Path) -> set[str]:
        """The rules that the checker finds broken."""
        history = History(folder / "history.jsonl")
        for what, facts in self.told:
            history.tell(what, task=self.task.number, **facts)
        findings = check({self.task.number: self.task}, history, self.evidence)
        history.close()
        return {finding.rule for finding in findings}


def test_a_good_run_has_no_findings(tmp_path: Path) -> None:
    assert GoodRun().rules(tmp_path) == set()


def late(run: GoodRun, after_s: float, *, is_due: bool = True) -> None:
    """The job failed as late, so long after its deadline."""
    end_after_deadline(run, after_s, is_due=is_due)
    run.job.job.state = job_pb2.JOB_STATE_FAILED
    run.job.job.error.reason = "DEADLINE_EXCEEDED"


def end_after_deadline(run: GoodRun, after_s: float, *, is_due: bool = True) -> None:
    """The job ended so long after its deadline."""
    run.task = replace(run.task, deadline_s=2.0 if is_due else 0.0)
    run.job.job.deadline_at.FromSeconds(1000)
    run.job.job.finished_at.FromMilliseconds(int(1000 * (1000 + after_s)))


def test_a_job_that_ends_in_time_or_soon_after_as_late_has_no_findings_of_time(tmp_path: Path) -> None:
    run = GoodRun()
    end_after_deadline(run, -0.5)
    assert run.rules(tmp_path) == set()
    late(run, 0.5)
    assert not {"wrong time", "wrong end"} & run.rules(tmp_path)


DAMAGE: list[tuple[str, Callable[[GoodRun], object]]] = [
    ("lost", lambda run: run.evidence.jobs.clear()),
    ("lost", lambda run: run.job.files.clear()),
    ("lost", lambda run: run.told.pop()),
    ("lost", lambda run: setattr(run.job.job, "state", RUNNING)),
    ("duplicated", lambda run: run.told.append(("accepted", {"job": "f" * 24}))),
    ("duplicated", lambda run: run.evidence.jobs.update({"f" * 24: run.job})),
    ("double-written", lambda run: setattr(run.job, "terminal_writes", 2)),
    ("double-written", lambda run: run.told.append(("ended", {"state": "CANCELLED", "reason": "CANCELLED"}))),
    ("stuck", lambda run: run.told.append(("gave up", {}))),
    ("refused", lambda run: run.told.append(("refused", {"reason": "INTERNAL", "text": ""}))),
    ("wrong end", lambda run: setattr(run.job.job, "state", job_pb2.JOB_STATE_CANCELLED)),
    ("wrong picture", lambda run: run.job.files.update({f"{JOB_ID}-7": "0" * 64})),
    ("wrong picture", lambda run: run.told[3][1].update(sha256="0" * 64)),
    ("wrong picture", lambda run: setattr(run.job.job.output, "sha256", "0" * 64)),
    ("orphaned", lambda run: run.job.files.update({f"{JOB_ID}-6": run.sha256})),
    ("orphaned", lambda run: run.evidence.remains.append("a lease")),
    ("gap", lambda run: run.job.events.pop(3)),
    ("gap", lambda run: run.stream.pop(3)),
    ("out of order", lambda run: run.stream.append(run.stream[2])),
    ("out of order", lambda run: run.stream.append([7, 6, 1.0, 3, 3])),
    ("out of order", lambda run: setattr(run.job.events[3][2], "fraction", 0.01)),
    ("out of order", lambda run: setattr(run.job.events[3][2], "completed", 4)),
    ("recomputed", lambda run: run.job.steps.update({100: [1, 2, 1, 2, 3]})),
    ("recomputed", lambda run: run.job.steps.update({100: [1, 2, 2, 3]})),
    ("wrong end", lambda run: late(run, +1.0, is_due=False)),
    ("wrong time", lambda run: late(run, -1.0)),
    ("wrong time", lambda run: late(run, +60.0)),
    ("wrong time", lambda run: end_after_deadline(run, 1.0)),
    ("wrong tenant", lambda run: setattr(run.job.job, "tenant", "somebody")),
    ("bad exit", lambda run: run.told.append(("terminated", {"name": "gateway-0", "code": 1}))),
]


@pytest.mark.parametrize(("rule", "damage"), DAMAGE)
def test_damage_is_found(tmp_path: Path, rule: str, damage: Callable[[GoodRun], object]) -> None:
    run = GoodRun()
    damage(run)
    assert rule in run.rules(tmp_path)
