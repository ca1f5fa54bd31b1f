"""A small model of what the scripts in Redis promise, which does one thing after the other to both and compares.

Every claim that was ever given is kept and used again, so that stale holders act at any time. Knows nothing of where
scripts come from. Invariant: the time that they see is the model's.
"""

from __future__ import annotations

import asyncio
import itertools
import uuid
from collections.abc import Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, multiple, precondition, rule

from darkroom.rpc.errors import RequestIdReusedError, StaleTokenError
from darkroom.v1 import error_pb2, generation_pb2, job_pb2
from services.gateway.store.connection import Durability, connect
from services.gateway.store.jobs import Jobs
from services.gateway.store.record import Claim
from services.gateway.store.scripts import Scripts
from services.gateway.store.vocabulary import Bounds, Setback, Wish

LEASE_MS, START_MS, PATIENCE_MS = 1000, 1_700_000_000_000, 10_000
MOST_DEATHS = 2
# More at once tell nothing new, and every one is looked at after every step.
MANY_JOBS = 6
QUEUED, RUNNING = job_pb2.JOB_STATE_QUEUED, job_pb2.JOB_STATE_RUNNING
SUCCEEDED, FAILED, CANCELLED = job_pb2.JOB_STATE_SUCCEEDED, job_pb2.JOB_STATE_FAILED, job_pb2.JOB_STATE_CANCELLED
WORKERS = ("w0", "w1", "w2")
Answer = TypeVar("Answer")


@dataclass
class ModelJob:
    """What a job should be."""

    state: int = QUEUED
    token: int = 0
    worker: str = ""
    lease_ends_ms: int = 0
    attempts: int = 0
    is_cancel_wanted: bool = False
    shape: str = ""
    # Its engine died: it runs with no other.
    is_alone: bool = False
    # When another job first went before it at the head of the line.
    passed_ms: int | None = None
    setbacks: dict[Setback, int] = field(default_factory=lambda: dict.fromkeys(Setback, 0))
    kept: int = 0
    # Changes of state and progress, in all.
    num_events: int = 1

    def enter(self, state: int) -> None:
        """Changes state, which is told."""
        self.state = state
        self.num_events += 1


class StoreModel(RuleBasedStateMachine):
    """Does one thing after the other to both, and compares."""

    claims = Bundle("claims")
    jobs_known = Bundle("jobs_known")

    def __init__(self, url: str, folder: Path) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.client = self.run(_connected(url))
        # Ids in order, so that ties between leases fall the same way whenever a run is repeated.
        suffixes = map("{:012x}".format, itertools.count())
        scripts = Scripts(self.client, Durability.EVERY_WRITE, folder)
        self.jobs = Jobs(self.client, scripts, lambda: next(suffixes))
        self.model: dict[str, ModelJob] = {}
        self.requests: dict[str, tuple[str, str]] = {}
        self.now_ms = START_MS
        self.tokens = 0
        self.set_clock()

    def run(self, work: Coroutine[Any, Any, Answer]) -> Answer:
        """Runs it to its end."""
        return self.runner.run(work)

    def set_clock(self) -> None:
        """Tells the scripts the time."""
        self.run(_awaited(self.client.set("clock", self.now_ms)))

    def teardown(self) -> None:
        self.run(self.client.aclose())
        self.runner.close()

    # -- clients ----------------------------------------------------------------------------------------------------

    @rule(target=jobs_known, number=st.integers(0, 4), body=st.sampled_from("ab"))
    def submit(self, number: int, body: str) -> Any:
        request_id = str(uuid.UUID(int=number)) if number else ""
        request = generation_pb2.GenerationRequest(model="m", prompt=body)
        shape = f"8x8 {body}"
        call = self.jobs.submit(request, "kind", request_id, body, Bounds(100, 100), shape=shape)
        first = self.requests.get(request_id) if request_id else None
        if first is not None and first[1] != body:
            with pytest.raises(RequestIdReusedError):
                self.run(call)
            return multiple()
        job_id = self.run(call).id
        if first is not None:
            assert job_id == first[0]
            return multiple()
        assert job_id not in self.model
        self.model[job_id] = ModelJob(shape=shape)
        if request_id:
            self.requests[request_id] = (job_id, body)
        return job_id

    @precondition(lambda self: len(self.model) <= MANY_JOBS)
    @rule(target=jobs_known, body=st.sampled_from("ab"))
    def submit_three(self, body: str) -> Any:
        """More than a worker may have room for, which chance alone seldom brings together."""
        return multiple(*[self.submit(0, body) for _ in range(3)])

    @rule(job_id=jobs_known)
    def cancel(self, job_id: str) -> None:
        self.run(self.jobs.cancel(job_id))
        job = self.model[job_id]
        if job.state == QUEUED:
            job.enter(CANCELLED)
        elif job.state == RUNNING:
            job.is_cancel_wanted = True

    # -- time -------------------------------------------------------------------------------------------------------

    @rule(milliseconds=st.sampled_from([-700, 1, 300, LEASE_MS - 1, LEASE_MS, 5 * LEASE_MS]))
    def let_time_pass(self, milliseconds: int) -> None:
        """Also backwards, as a server's clock may step."""
        self.now_ms += milliseconds
        self.set_clock()

    # -- gateways ---------------------------------------------------------------------------------------------------

    @rule(target=claims, worker=st.sampled_from(WORKERS), room=st.integers(1, 3))
    def claim(self, worker: str, room: int) -> Any:
        """One job, or several of one shape under one token."""
        waiting = [found.decode() for found in self.run(_awaited(self.client.zrange("darkroom:queue", 0, -1)))]
        rooms = {"8x8": room}
        answer = self.run(self.jobs.claim(worker, "kind", [], PATIENCE_MS / 1000, LEASE_MS / 1000, rooms))
        is_held = any(job.state == RUNNING and job.worker == worker for job in self.model.values())
        if is_held or not waiting:
            assert answer == float("inf")
            return multiple()
        assert isinstance(answer, Claim)
        claims = [answer, *answer.others]
        assert [claim.job.id for claim in claims] == self.batch(waiting, room)
        assert {claim.run_id for claim in claims} == {answer.run_id}
        self.take(claims)
        for claim in claims:
            job = self.model[claim.job.id]
            job.worker, job.kept = worker, 0
            job.attempts += 1
            job.enter(RUNNING)
        return multiple(*claims)

    def batch(self, waiting: list[str], room: int) -> list[str]:
        """What should be taken: the head of the line, and those of its shape that may go with it, in line."""
        head, *line = waiting
        taken = [head]
        for job_id in list(line):
            job = self.model[job_id]
            is_alike = job.shape == self.model[head].shape and not job.is_alone and not self.model[head].is_alone
            if len(taken) == room or not is_alike:
                continue
            first = self.model[line[0]]
            if first is not job:
                if first.passed_ms is not None and self.now_ms - first.passed_ms >= PATIENCE_MS:
                    continue
                first.passed_ms = self.now_ms if first.passed_ms is None else first.passed_ms
            line.remove(job_id)
            taken.append(job_id)
        return taken

    @rule(target=claims)
    def adopt(self) -> Any:
        answer = self.run(self.jobs.adopt(LEASE_MS / 1000))
        abandoned = {
            job_id: job.lease_ends_ms
            for job_id, job in self.model.items()
            if job.state == RUNNING and job.lease_ends_ms <= self.now_ms
        }
        if not abandoned:
            assert answer is None
            return multiple()
        assert answer is not None
        assert abandoned[answer.job.id] == min(abandoned.values())
        claims = [answer, *answer.others]
        worker = self.model[answer.job.id].worker
        beside = {job_id for job_id, job in self.model.items() if job.state == RUNNING and job.worker == worker}
        assert sorted(claim.job.id for claim in claims) == sorted(beside), "what runs together is adopted together"
        for claim in claims:
            job = self.model[claim.job.id]
            assert (claim.run_sequence, claim.job.attempts) == (job.kept, job.attempts)
        self.take(claims)
        return multiple(*claims)

    def take(self, claims: list[Claim]) -> None:
        """One new token, higher than all before, and new leases."""
        assert claims[0].token.counter > self.tokens
        self.tokens = claims[0].token.counter
        for claim in claims:
            job = self.model[claim.job.id]
            assert claim.token.counter == self.tokens
            job.token = self.tokens
            job.lease_ends_ms = self.now_ms + LEASE_MS

    def holds(self, claim: Claim) -> bool:
        """True if the claim is the newest of a running job."""
        job = self.model[claim.job.id]
        return job.state == RUNNING and job.token == claim.token.counter

    def has_ended_it(self, claim: Claim) -> bool:
        """True if the job ended under this very claim: repeating the call is no fault."""
        job = self.model[claim.job.id]
        return job.token == claim.token.counter and job.state not in (QUEUED, RUNNING)

    @rule(claim=claims)
    def renew(self, claim: Claim) -> None:
        call = self.jobs.renew(claim, LEASE_MS / 1000)
        if not self.holds(claim):
            with pytest.raises(StaleTokenError):
                self.run(call)
            return
        job = self.model[claim.job.id]
        assert self.run(call) == (Wish.CANCEL if job.is_cancel_wanted else Wish.GO_ON)
        job.lease_ends_ms = self.now_ms + LEASE_MS

    @rule(claim=claims, first=st.integers(1, 6), count=st.integers(1, 3))
    def append(self, claim: Claim, first: int, count: int) -> None:
        entries = [(sequence, generation_pb2.Progress(completed=sequence)) for sequence in range(first, first + count)]
        call = self.jobs.append(claim, entries)
        if not self.holds(claim):
            with pytest.raises(StaleTokenError):
                self.run(call)
            return
        self.run(call)
        job = self.model[claim.job.id]
        job.num_events += sum(sequence > job.kept for sequence, _ in entries)
        job.kept = max(job.kept, first + count - 1)

    @rule(claim=claims, succeeds=st.booleans())
    def finish(self, claim: Claim, succeeds: bool) -> None:
        failure = error_pb2.Error(reason="BROKEN_OUTPUT")
        call = self.jobs.succeed(claim, generation_pb2.Output()) if succeeds else self.jobs.fail(claim, failure)
        if self.settles(claim, call):
            self.model[claim.job.id].enter(SUCCEEDED if succeeds else FAILED)

    @rule(claim=claims, setback=st.sampled_from(Setback))
    def requeue(self, claim: Claim, setback: Setback) -> None:
        if not self.settles(claim, self.jobs.requeue(claim, setback, MOST_DEATHS, error_pb2.Error(reason="POISON"))):
            return
        job = self.model[claim.job.id]
        if job.is_cancel_wanted:
            job.enter(CANCELLED)
            return
        job.setbacks[setback] += 1
        if setback is Setback.RELEASED:
            job.attempts -= 1
        job.is_alone |= setback in (Setback.DEATH, Setback.SUSPECT)
        job.passed_ms = 0
        is_charged = setback in (Setback.DEATH, Setback.LOST)
        job.enter(FAILED if is_charged and job.setbacks[setback] >= MOST_DEATHS else QUEUED)

    def settles(self, claim: Claim, call: Coroutine[Any, Any, None]) -> bool:
        """Makes a call that ends an attempt; returns True if it counts."""
        if self.holds(claim):
            self.run(call)
            return True
        if self.has_ended_it(claim):
            self.run(call)
        else:
            with pytest.raises(StaleTokenError):
                self.run(call)
        return False

    @rule(claim=claims)
    def forfeit(self, claim: Claim) -> None:
        self.run(self.jobs.forfeit(claim))
        if self.holds(claim):
            self.model[claim.job.id].lease_ends_ms = 0

    # -- what always holds ------------------------------------------------------------------------------------------

    @invariant()
    def jobs_are_as_they_should_be(self) -> None:
        for job_id, job in self.model.items():
            fields = self.run(_awaited(self.client.hgetall(f"darkroom:job:{job_id}")))
            assert int(fields[b"state"]) == job.state
            assert int(fields.get(b"token", 0)) == job.token
            assert int(fields[b"attempts"]) == job.attempts
            is_over = job.state not in (QUEUED, RUNNING)
            assert int(fields.get(b"terminal_writes", 0)) == is_over
            events = self.run(_awaited(self.client.xrange(f"darkroom:events:{job_id}")))
            assert [event_id for event_id, _ in events] == [b"%d-0" % place for place in range(1, job.num_events + 1)]
            ends = [place for place, (_, told) in enumerate(events) if int(told.get(b"state", 0)) > RUNNING]
            assert ends == ([len(events) - 1] if is_over else [])

    @invariant()
    def lists_hold_what_they_should(self) -> None:
        jobs = self.model.items()
        leases = dict(self.run(_awaited(self.client.zrange("darkroom:leases", 0, -1, withscores=True))))
        assert leases == {job_id.encode(): job.lease_ends_ms for job_id, job in jobs if job.state == RUNNING}
        queue = self.run(_awaited(self.client.zrange("darkroom:queue", 0, -1)))
        assert set(queue) == {job_id.encode() for job_id, job in jobs if job.state == QUEUED}
        for worker in WORKERS:
            held = self.run(_awaited(self.client.hgetall(f"darkroom:worker:{worker}")))
            assert held == {
                job_id.encode(): b"%d" % job.token
                for job_id, job in jobs
                if job.state == RUNNING and job.worker == worker
            }


async def _awaited(call: Any) -> Any:
    return await call


async def _connected(url: str) -> Any:
    client = connect(url)
    await client.flushall()
    return client
