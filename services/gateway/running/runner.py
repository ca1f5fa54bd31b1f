"""Drives one claimed job to an end: terminal, back in the queue, or handed to another gateway.

Knows nothing of plans, or of the other jobs of its batch: those have runners of their own. Invariant: whatever happens,
the job is left terminal, queued, or under a lease that runs out; and a file that lost its job is deleted.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import time

import structlog

from darkroom.rpc.errors import (
    CancelledError,
    DarkroomError,
    DeadlineError,
    DiskFullError,
    EngineHungError,
    InternalError,
    OutputsUnavailableError,
    StaleTokenError,
    StoreUnavailableError,
    WorkerLostError,
    error_from_message,
    error_to_message,
)
from darkroom.rpc.logs import log
from darkroom.rpc.serving import owned_task
from services.gateway.running.attempt import Attempt
from services.gateway.running.lease import Lease
from services.gateway.running.resources import Resources
from services.gateway.running.verdict import Verdict, final_error, judge
from services.gateway.store import bell
from services.gateway.store.record import Claim
from services.gateway.store.vocabulary import CANCELLED, LATE, Setback, Wish
from services.gateway.workers.seat import Seat

CANCEL_AGAIN_S = 1.0
# How long, and how often, the store is asked whether a file of a lost claim is the one that counts.
ORPHAN_PATIENCE_S = 10.0
ORPHAN_LOOK_S = 0.5
# Verdicts that are the worker's fault, after which it rests.
WORKERS_FAULT = (Verdict.LOST, Verdict.RELEASE, Verdict.DEATH, Verdict.SUSPECT)
SETBACKS = {
    Verdict.RELEASE: Setback.RELEASED,
    Verdict.LOST: Setback.LOST,
    Verdict.DEATH: Setback.DEATH,
    Verdict.SUSPECT: Setback.SUSPECT,
}


class Stop(enum.Enum):
    """Why an attempt was broken off from outside."""

    LEASE_LOST = "another gateway may have the job"
    HUNG = "no progress within the idle budget"
    UNWANTED = "cancelled or past its deadline, and the worker does not have it yet"
    HAND_OVER = "this gateway is stopping"


class Runner:
    """One job's driver."""

    def __init__(self, means: Resources, seat: Seat, claim: Claim) -> None:
        self.claim = claim
        self._means = means
        self._seat = seat
        settings = means.settings
        self._lease = Lease(
            means.jobs,
            claim,
            settings.gateway_lease_s,
            settings.gateway_hang_slack_s,
            lost=lambda: self._stop(Stop.LEASE_LOST),
            hung=lambda: self._stop(Stop.HUNG),
            stop=self._want_stop,
        )
        self.attempt = Attempt(means, claim, self._lease, self._want_stop)
        self._wish = Wish.GO_ON
        self._stop_wanted = asyncio.Event()
        self._body: asyncio.Task[None] | None = None
        self._stopped: Stop | None = None
        self._has_succeeded = False

    async def run(self) -> None:
        """Drives the job. Returns when it is no longer this gateway's."""
        job = self.claim.job
        with structlog.contextvars.bound_contextvars(job_id=job.id):
            log.info("job_adopted" if self.claim.is_adopted else "job_claimed", worker_id=job.worker_id)
            try:
                async with (
                    owned_task(self._lease.keep(), f"lease-{job.id}"),
                    owned_task(self._obey(), f"obey-{job.id}"),
                ):
                    await self._end(await self._outcome())
            except StoreUnavailableError as lost:
                log.warning("job_abandoned", reason=lost.reason)
            except StaleTokenError as lost:
                log.warning("job_abandoned", reason=lost.reason)
                await self._delete_orphan()

    def hand_over(self) -> None:
        """Stops driving; another gateway adopts the job at once, and the worker goes on meanwhile."""
        self._stop(Stop.HAND_OVER)

    async def _outcome(self) -> DarkroomError | None:
        """Runs the attempt; returns what ended it, None if the job succeeded."""
        self._body = asyncio.create_task(self._succeed(), name=f"attempt-{self.claim.job.id}")
        try:
            await self._body
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if self._stopped is None or (task is not None and task.cancelling()):
                raise
        except DarkroomError as error:
            return error
        except Exception as bug:  # the job boundary: a bug fails one job, not the gateway
            log.exception("attempt_failed")
            return InternalError(f"the gateway failed with {type(bug).__name__}; its log has the traceback")
        return None

    async def _succeed(self) -> None:
        output, entries = await self.attempt.run()
        job, token = self.claim.job, self.claim.token
        await self._delete_older()
        try:
            if self._wish:
                raise self._unwanted()
            await self.attempt.insist(lambda: self._means.jobs.succeed(self.claim, output, entries))
        except (StaleTokenError, CancelledError, DeadlineError):
            await self._means.outputs.delete(job.id, token.counter)
            raise
        log.info(
            "job_succeeded", size_bytes=output.size_bytes, engine_s=output.engine_time.ToTimedelta().total_seconds()
        )
        self._has_succeeded = True
        self._seat.went_well(job.id, token.counter)
        await self._acknowledge()

    async def _end(self, error: DarkroomError | None) -> None:
        """Leaves the job as it should be left."""
        if self._stopped is Stop.LEASE_LOST:
            raise StaleTokenError("the lease was lost")
        if self._stopped is Stop.HAND_OVER:
            await self._means.jobs.forfeit(self.claim)
            log.info("job_handed_over")
            return
        if self._stopped is Stop.UNWANTED or (self._wish and isinstance(error, CancelledError)):
            error = self._unwanted()
        if self._stopped is Stop.HUNG:
            text = "neither progress nor an error came within the idle budget and its slack"
            await self._set_back(EngineHungError(text), Verdict.LOST)
        elif error is not None:
            verdict = judge(error, is_cancel_wanted=self._wish is Wish.CANCEL)
            await (self._fail(error) if verdict is Verdict.FAIL else self._set_back(error, verdict))

    async def _fail(self, error: DarkroomError) -> None:
        log.warning("job_failed", reason=error.reason)
        await self._delete_older()
        await self.attempt.insist(lambda: self._means.jobs.fail(self.claim, error_to_message(error)))
        await self._acknowledge()

    async def _set_back(self, error: DarkroomError, verdict: Verdict) -> None:
        log.warning("attempt_ended", reason=error.reason, verdict=verdict.name, message=error.message)
        if verdict is Verdict.ABANDON:
            # Either a newer claim has the job, which the store says now, or the worker was taken from it.
            verdict = Verdict.RELEASE
        settings = self._means.settings
        bound = settings.gateway_max_deaths if verdict is Verdict.DEATH else settings.gateway_max_lost
        failed, cause = error_to_message(final_error(error, verdict, bound)), error_to_message(error)
        # Calls end with the deadline of their job: that is nobody's fault, and the store ends the job.
        is_late = self.claim.left_s == 0
        if verdict in WORKERS_FAULT and not is_late:
            self._seat.went_wrong(self.claim.token.counter)
        if isinstance(error, DiskFullError | OutputsUnavailableError):
            self._means.outputs.problem = error.message
        is_gone = isinstance(error, WorkerLostError) and not is_late
        if is_gone:
            self._seat.lost(error.message)
        setback = SETBACKS[verdict]
        await self._delete_older()
        await self.attempt.insist(lambda: self._means.jobs.requeue(self.claim, setback, bound, failed, cause))
        # Not before: if the store is away now, whoever adopts the job must find how its run ended.
        if not is_gone:
            await self._acknowledge()

    async def _delete_orphan(self) -> None:
        """Deletes what this claim has stored, unless it won after all and its answer was lost: the store knows.

        A lease is mostly lost because the store is away, so it is asked for a while; what is left then is swept later.
        """
        job, token = self.claim.job, self.claim.token
        until = time.monotonic() + ORPHAN_PATIENCE_S
        while time.monotonic() < until:
            try:
                is_there = await self._means.outputs.exists(job.id, token.counter)
                if is_there and await self._means.jobs.file_token(job.id) != token.counter:
                    await self._means.outputs.delete(job.id, token.counter)
                return
            except (StoreUnavailableError, OSError):
                await asyncio.sleep(ORPHAN_LOOK_S)

    async def _delete_older(self) -> None:
        """Deletes what an earlier gateway stored that lost the job before it could say so, and its draft.

        Before the job ends or waits again, not after: a lower claim can't win any more, and nobody would come later.
        """
        if self.claim.is_adopted or self.claim.job.attempts > 1:
            await self._means.outputs.delete_older(self.claim.job.id, self.claim.token.counter)

    async def _acknowledge(self) -> None:
        """Lets the worker forget; it does so by itself in time where this does not reach it."""
        with contextlib.suppress(DarkroomError):
            await self._seat.client.acknowledge(self.claim.job.id, self.claim.token)

    async def _obey(self) -> None:
        """Waits until somebody wants the job stopped, or its deadline passes, and sees to it."""
        with self._means.bell.topic(bell.cancelling(self.claim.job.id)) as asked:
            while not self._stop_wanted.is_set():
                if await asked.wait(CANCEL_AGAIN_S):
                    # A ring is a hint, and all topics ring after Redis was away: the store knows.
                    with contextlib.suppress(DarkroomError):
                        if wish := await self._means.jobs.renew(self.claim, self._means.settings.gateway_lease_s):
                            self._want_stop(wish)
        while True:
            if not self.attempt.is_on_worker:
                self._stop(Stop.UNWANTED)
                return
            with contextlib.suppress(DarkroomError):
                await self._seat.client.cancel(self.claim.job.id)
            await asyncio.sleep(CANCEL_AGAIN_S)

    def _want_stop(self, wish: Wish) -> None:
        self._wish = self._wish or wish
        self._stop_wanted.set()

    def _unwanted(self) -> DarkroomError:
        """Returns what the job ends with that somebody wants no more."""
        return error_from_message(LATE if self._wish is Wish.DEADLINE else CANCELLED)

    def _stop(self, why: Stop) -> None:
        # A lease that ends with its job is not lost.
        if self._stopped is None and not self._has_succeeded and self._body is not None and not self._body.done():
            self._stopped = why
            self._body.cancel()
