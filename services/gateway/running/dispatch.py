"""Who works where: an attendant a worker claims job after job; a sweeper adopts what other gateways left behind.

Knows nothing of how a job is driven. Invariant: once draining, nothing new is claimed or adopted.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Sequence

from darkroom.rpc.errors import DarkroomError, DrainingError, UnknownWorkerError, WorkerLostError, error_to_message
from darkroom.rpc.logs import log
from darkroom.rpc.serving import owned_task
from darkroom.v1 import plan_pb2
from services.gateway.running.batch import Batch
from services.gateway.running.loading import Need, find_room
from services.gateway.running.resources import Resources
from services.gateway.running.runner import Runner
from services.gateway.running.verdict import Verdict, final_error
from services.gateway.store import bell
from services.gateway.store.record import Claim
from services.gateway.store.vocabulary import Setback
from services.gateway.workers.seat import Seat

# Rings can be missed while Redis restarts; this often an idle attendant looks by itself.
LOOK_S = 1.0
STORE_PAUSE_S = 0.25
# Longest that a claim waits to hear how many jobs there is room for.
ROOM_S = 0.5


class Dispatch:
    """All attendants of one gateway."""

    def __init__(self, means: Resources) -> None:
        self._means = means
        self._is_draining = False
        self._runners: dict[str, Runner] = {}
        self._adopted: set[asyncio.Task[None]] = set()
        self._idle = asyncio.Event()
        self._idle.set()

    async def attend(self, seat: Seat) -> None:
        """Runs job after job on one worker, until cancelled."""
        with self._means.bell.topic(bell.QUEUE) as news:
            while not self._is_draining:
                await seat.until_free()
                news.ticket()
                try:
                    pause_s = await self._serve(seat)
                except DarkroomError as error:
                    log.warning("claim_failed", reason=error.reason)
                    pause_s = STORE_PAUSE_S
                if pause_s:
                    await news.wait(min(pause_s, LOOK_S))

    async def sweep(self) -> None:
        """Adopts running jobs whose gateways are gone, until cancelled."""
        look_s = min(LOOK_S, self._means.settings.gateway_lease_s / 5)
        try:
            with self._means.bell.topic(bell.LEASES) as news:
                while not self._is_draining:
                    news.ticket()
                    with contextlib.suppress(DarkroomError):
                        while (claim := await self._adopt()) is not None:
                            task = asyncio.create_task(self._resume(claim), name=f"adopted-{claim.job.id}")
                            self._adopted.add(task)
                            task.add_done_callback(self._adopted.discard)
                    await news.wait(look_s)
                await asyncio.Event().wait()
        finally:
            for task in list(self._adopted):
                task.cancel()
            await asyncio.gather(*self._adopted, return_exceptions=True)

    async def drain(self, patience_s: float) -> None:
        """Claims nothing more; waits for what runs, then hands the rest over."""
        self._is_draining = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience_s):
                await self._idle.wait()
        for runner in list(self._runners.values()):
            runner.hand_over()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(5.0):
                await self._idle.wait()

    async def _serve(self, seat: Seat) -> float:
        """Claims a job for a worker and drives it; returns how long to wait for another, 0 after a job."""
        outputs = self._means.outputs
        if self._is_draining or not await outputs.has_room():
            return LOOK_S
        settings = self._means.settings
        elsewhere = {other.kind for other in self._means.pool.seats if other is not seat and other.is_serving}
        claim = await self._means.jobs.claim(
            seat.worker_id,
            seat.kind,
            sorted(elsewhere - {seat.kind, ""}),
            settings.gateway_patience_s,
            settings.gateway_lease_s,
            await self._rooms(seat),
        )
        if not isinstance(claim, Claim):
            return claim
        if self._is_draining:
            # The signal came while the claim was on its way.
            draining = error_to_message(DrainingError("this gateway is stopping"))
            for each in (claim, *claim.others):
                await self._means.jobs.requeue(each, Setback.RELEASED, 1, draining)
            return LOOK_S
        await self._drive(seat, [claim, *claim.others])
        return 0.0

    async def _rooms(self, seat: Seat) -> dict[str, int]:
        """How many jobs of each size may be claimed together; asks for the size that the plan was made for."""
        plan, most = seat.loaded_plan, self._means.settings.most_at_once(seat.device)
        if plan is None or not plan.workload.width or most == 1:
            return {}
        ends_at = time.monotonic() + ROOM_S
        need = Need(plan.model, plan_pb2.PlanPreferences(), plan.workload, seat.kind, ends_at)
        await find_room(seat, self._means.planner, need, most)
        return seat.rooms

    async def _drive(self, seat: Seat, claims: Sequence[Claim]) -> None:
        """Drives the jobs of one run, each by a runner of its own, until none is this gateway's any more."""
        runners = {claim.job.id: Runner(self._means, seat, claim) for claim in claims}
        batch = Batch(self._means, seat, [runner.attempt for runner in runners.values()])
        self._runners |= runners
        self._idle.clear()
        seat.num_runs += 1
        try:
            async with owned_task(batch.run(), f"run-{claims[0].run_id}"):
                ends = await asyncio.gather(*(runner.run() for runner in runners.values()), return_exceptions=True)
            for failure in ends:
                if failure is not None:
                    raise failure
        finally:
            seat.num_runs -= 1
            for job_id in runners:
                self._runners.pop(job_id, None)
            if not self._runners:
                self._idle.set()

    async def _adopt(self) -> Claim | None:
        if self._is_draining:
            return None
        # Without room for files it can still end what is past its deadline.
        has_room = await self._means.outputs.has_room()
        return await self._means.jobs.adopt(self._means.settings.gateway_lease_s, is_late_only=not has_room)

    async def _resume(self, claim: Claim) -> None:
        """Drives adopted jobs on the worker that has them, once that answers; else the worker is lost."""
        claims = (claim, *claim.others)
        settings = self._means.settings
        deadline = time.monotonic() + settings.gateway_worker_lost_s
        while time.monotonic() < deadline:
            with contextlib.suppress(UnknownWorkerError):
                seat = self._means.pool.find(claim.job.worker_id)
                if seat.is_reachable:
                    # Jobs of a batch that a fallback was loaded for have a run of their own.
                    runs = {each.run_id: [other for other in claims if other.run_id == each.run_id] for each in claims}
                    await asyncio.gather(*(self._drive(seat, run) for run in runs.values()))
                    return
            await asyncio.sleep(0.1)
        log.warning("adopted_worker_missing", job_id=claim.job.id, worker_id=claim.job.worker_id)
        lost = WorkerLostError(f"worker {claim.job.worker_id} is gone", worker_id=claim.job.worker_id)
        bound = settings.gateway_max_lost
        failed = error_to_message(final_error(lost, Verdict.LOST, bound))
        for each in claims:
            await self._means.outputs.delete_older(each.job.id, each.token.counter)
            with contextlib.suppress(DarkroomError):
                await self._means.jobs.requeue(each, Setback.LOST, bound, failed, error_to_message(lost))
