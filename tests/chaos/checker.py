"""Judges a run: what the clients wrote down against what the run left behind.

Knows nothing of faults, but which jobs' engines were struck. Invariant: every rule is checked for every job; what
breaks one is a finding, and a run without findings is a good one.

    lost            accepted, and not ended; or ended well, and its picture can't be had
    duplicated      one request and two jobs, or a job that nobody asked for
    double-written  more than one terminal state, or more than one file
    stuck           not ended within its bound
    wrong end       another state or reason than the request calls for; an innocent job that was blamed
    wrong time      ended well after its deadline, or as late before it; or ended long after it
    wrong tenant    another one than asked for it
    wrong picture   other bytes than the engine paints for that request
    out of order    events that go back, a fraction that falls, something after the terminal state
    gap             a sequence that is missing
    recomputed      a step that was computed twice in one attempt
    orphaned        files, leases, claims that nobody needs any more
    refused         a call that was answered with an error that no fault explains
    bad exit        a service that was told to stop and did not exit with 0
"""

from __future__ import annotations

import hashlib
import itertools
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from darkroom.v1 import job_pb2, plan_pb2
from tests.chaos.evidence import Evidence, JobEvidence
from tests.chaos.history import History
from tests.chaos.work import CANCELLED, LATE, Task
from tests.engines.rehearsal import paint

# Between two looks at the clock in one script.
CLOCK_SLACK_S = 0.05
# From a deadline to the end of its job, whatever is down meanwhile: a few leases, and Redis and gateways starting anew.
LATE_BOUND_S = 30.0
TERMINAL = {job_pb2.JOB_STATE_SUCCEEDED, job_pb2.JOB_STATE_FAILED, job_pb2.JOB_STATE_CANCELLED}


@dataclass(frozen=True)
class Finding:
    """A broken rule."""

    rule: str
    job_id: str
    text: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.job_id} {self.text}"


@dataclass
class Told:
    """What clients wrote down of one task."""

    job_ids: set[str]
    ended: list[dict[str, Any]]
    read: list[dict[str, Any]]
    streams: list[list[list[Any]]]
    may_be_cancelled: bool = False
    gave_up: bool = False
    refused: str = ""


def check(tasks: dict[int, Task], history: History, evidence: Evidence) -> list[Finding]:
    """Returns all findings."""
    told = _by_task(tasks, history)
    return [
        *(Finding("orphaned", "", text) for text in evidence.remains),
        *(
            Finding("bad exit", "", f"{line['name']} exited with {line['code']}")
            for line in history.lines("terminated")
            if line["code"]
        ),
        *_check_identity(told, evidence),
        *(
            finding
            for number, words in told.items()
            for job_id in words.job_ids
            if job_id in evidence.jobs
            for finding in _check_job(tasks[number], words, evidence.jobs[job_id])
        ),
    ]


def _by_task(tasks: dict[int, Task], history: History) -> dict[int, Told]:
    told: dict[int, Told] = defaultdict(lambda: Told(set(), [], [], []))
    for line in history.lines():
        if "task" not in line:
            continue
        words, task = told[line["task"]], tasks[line["task"]]
        match line["what"]:
            case "accepted":
                words.job_ids.add(line["job"])
            case "watched":
                words.streams.append(line["events"])
            case "ended" | "read" as kind:
                getattr(words, kind).append(line)
            case "cancelling" | "dropped":
                words.may_be_cancelled = True
            case "broken" if task.way.startswith("generate") and line["code"] != "UNAVAILABLE":
                words.may_be_cancelled = True  # the client gave the stream up, which a living gateway sees
            case "gave up":
                words.gave_up = True
            case "refused":
                words.refused = f"{line['reason']}: {line['text']}"
    return told


def _check_identity(told: dict[int, Told], evidence: Evidence) -> Iterator[Finding]:
    known = {job_id for words in told.values() for job_id in words.job_ids}
    for number, words in told.items():
        if len(words.job_ids) > 1:
            yield Finding("duplicated", "", f"task {number} became the jobs {sorted(words.job_ids)}")
        for job_id in words.job_ids - evidence.jobs.keys():
            yield Finding("lost", job_id, f"task {number} was accepted, and the store does not know it")
        if words.gave_up:
            yield Finding("stuck", " ".join(words.job_ids), f"task {number} did not end within its bound")
        if words.refused:
            yield Finding("refused", " ".join(words.job_ids), f"task {number}: {words.refused}")
    for job_id in evidence.jobs.keys() - known:
        # A client that gave up before it heard the answer.
        if not any(words.gave_up and not words.job_ids for words in told.values()):
            yield Finding("duplicated", job_id, "is in the store, and nobody was told of it")


def _check_job(task: Task, words: Told, found: JobEvidence) -> Iterator[Finding]:
    job = found.job
    for rule, text in (
        *_check_end(task, words, found),
        *_check_time(task, job),
        *_check_files(task, words, found),
        *_check_store_events(found),
        *(problem for stream in words.streams for problem in _check_stream(stream, found)),
        *_check_steps(found),
    ):
        yield Finding(rule, job.id, f"(task {task.number}, {task.kind}, {task.way}) {text}")


def _check_end(task: Task, words: Told, found: JobEvidence) -> Iterator[tuple[str, str]]:
    job = found.job
    if job.state not in TERMINAL:
        yield "lost", f"is {job_pb2.JobState.Name(job.state)} after all was over"
        return
    if found.terminal_writes != 1:
        yield "double-written", f"its terminal state was written {found.terminal_writes} times"
    state = job_pb2.JobState.Name(job.state).removeprefix("JOB_STATE_")
    end = job.error.reason if state == "FAILED" else state
    asked_for = {CANCELLED: words.may_be_cancelled, LATE: bool(task.deadline_s)}
    allowed = {task.expected, *(end for end, is_allowed in asked_for.items() if is_allowed)}
    if end not in allowed:
        yield "wrong end", f"is {end} ({job.error.message}), not {' or '.join(sorted(allowed))}"
    for line in words.ended:
        if (line["state"], line["reason"]) != (state, job.error.reason):
            yield "double-written", f"was told as {line['state']} {line['reason']}, and is {end}"


def _check_time(task: Task, job: job_pb2.Job) -> Iterator[tuple[str, str]]:
    """A deadline, by the clock of Redis, which tells all times here and may have been stepped meanwhile."""
    if job.tenant != task.tenant:
        yield "wrong tenant", f"is {job.tenant}'s, not {task.tenant}'s"
    if not task.deadline_s or job.state not in TERMINAL:
        return
    after_s = (job.finished_at.ToMilliseconds() - job.deadline_at.ToMilliseconds()) / 1000
    if job.state == job_pb2.JOB_STATE_SUCCEEDED and after_s > CLOCK_SLACK_S:
        yield "wrong time", f"ended well {after_s:.3f} s after its deadline"
    if job.error.reason == LATE and after_s < -CLOCK_SLACK_S:
        yield "wrong time", f"ended as late {-after_s:.3f} s before its deadline"
    if after_s > LATE_BOUND_S:
        yield "wrong time", f"ended {after_s:.1f} s after its deadline"


def _check_files(task: Task, words: Told, found: JobEvidence) -> Iterator[tuple[str, str]]:
    is_done = found.job.state == job_pb2.JOB_STATE_SUCCEEDED
    wanted = {f"{found.job.id}-{found.token}"} if is_done else set()
    for name in found.files.keys() - wanted:
        yield "orphaned", f"file {name} is left"
    if not is_done:
        return
    painted = hashlib.sha256(paint(found.job.request, plan_pb2.Plan())).hexdigest()
    if (on_disk := found.files.get(*wanted)) is None:
        yield "lost", "its file is gone"
    elif on_disk != painted:
        yield "wrong picture", "its file is not what the engine paints"
    if found.job.output.sha256 != painted:
        yield "wrong picture", "its record names another SHA-256"
    if not words.read and not words.gave_up:
        yield "lost", "nobody could read its picture"
    for line in words.read:
        if line["sha256"] != painted:
            yield "wrong picture", f"a client read {line['size_bytes']} other bytes"


def _check_store_events(found: JobEvidence) -> Iterator[tuple[str, str]]:
    sequences = [sequence for sequence, _, _ in found.events]
    if sequences != list(range(1, found.job.last_sequence + 1)):
        yield "gap", f"the store has the sequences {sequences[:3]} … {sequences[-3:]} of {found.job.last_sequence}"
    ends = [sequence for sequence, state, _ in found.events if state in TERMINAL]
    if len(ends) != 1 or ends[0] != found.job.last_sequence:
        yield "out of order", f"terminal states at {ends} of {found.job.last_sequence}"
    fraction = 0.0
    for sequence, _, progress in found.events:
        if progress is None:
            fraction = 0.0  # another attempt, or none: a job that waits again may tell why
            continue
        if not fraction <= progress.fraction <= 1:
            yield "out of order", f"event {sequence} tells {progress.fraction:.3f} after {fraction:.3f}"
        if progress.total and progress.completed > progress.total:
            yield "out of order", f"event {sequence} tells step {progress.completed} of {progress.total}"
        fraction = progress.fraction


def _check_stream(stream: list[list[Any]], found: JobEvidence) -> Iterator[tuple[str, str]]:
    """One watch: rising sequences, each as the store has it; a gap only where a newer state was told at once."""
    store = {sequence: state for sequence, state, _ in found.events}
    last = 0
    for place, (sequence, kind, *rest) in enumerate(stream):
        is_state = kind == "job"
        if sequence <= last:
            yield "out of order", f"a watch told {sequence} after {last}"
        if place and sequence != last + 1:
            yield "gap", f"a watch told {sequence} after {last}"
        if place and is_state != (store.get(sequence) is not None):
            yield "out of order", f"event {sequence} was told as another kind than the store has"
        if is_state and rest[0] in TERMINAL and place != len(stream) - 1:
            yield "out of order", f"something came after the terminal event {sequence}"
        last = sequence


def _check_steps(found: JobEvidence) -> Iterator[tuple[str, str]]:
    """Steps begin anew only with a new claim: a re-attached run computes none twice.

    One thing else may begin them anew: gateway and worker died together, before the store heard a word of the run.
    """
    for pid, steps in found.steps.items():
        if steps.count(1) > 1 and found.num_starts > found.num_claims:
            yield "recomputed", f"was started {found.num_starts} times under {found.num_claims} claims"
        for before, after in itertools.pairwise(steps):
            if after not in (before + 1, 1):
                yield "recomputed", f"engine {pid} computed step {after} after {before}"


def summarise(tasks: dict[int, Task], evidence: Evidence) -> dict[str, Any]:
    """Returns the figures of a run: how jobs ended, what attempts and steps they took."""
    jobs = evidence.jobs.values()
    asked = sum(job.job.request.steps for job in jobs if job.job.state == job_pb2.JOB_STATE_SUCCEEDED)
    computed = sum(
        len(steps) for job in jobs if job.job.state == job_pb2.JOB_STATE_SUCCEEDED for steps in job.steps.values()
    )
    undisturbed = [
        job
        for job in jobs
        if job.job.state == job_pb2.JOB_STATE_SUCCEEDED and job.num_claims == 1 and job.num_starts == 1
    ]
    return {
        "jobs": len(evidence.jobs),
        "innocent": sum(task.is_innocent for task in tasks.values()),
        "states": dict(Counter(job_pb2.JobState.Name(job.job.state).removeprefix("JOB_STATE_") for job in jobs)),
        "reasons": dict(Counter(job.job.error.reason for job in jobs if job.job.HasField("error"))),
        "claims": dict(sorted(Counter(job.num_claims for job in jobs).items())),
        "engine_deaths_charged": sum(job.num_deaths for job in jobs),
        "lost_workers_charged": sum(job.num_lost for job in jobs),
        "starts_beyond_claims": sum(max(0, job.num_starts - job.num_claims) for job in jobs),
        "in_batches": sum(any(knob.knob == "batch" for knob in job.job.output.engagements) for job in jobs),
        "steps_asked": asked,
        "steps_computed": computed,
        "steps_asked_single_start": sum(job.job.request.steps for job in undisturbed),
        "steps_computed_single_start": sum(len(steps) for job in undisturbed for steps in job.steps.values()),
    }
