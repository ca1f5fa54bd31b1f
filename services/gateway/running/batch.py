"""One claim's run on one worker, for one job or for several that run together: load if needed, run or re-attach, hand
each job what concerns it.

Knows nothing of leases, queues or what a failure means for a job. Invariant: each of the run's events reaches its job
once and in order, and an end of the run as a whole reaches every job that still waits.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Sequence
from typing import TypeVar

from darkroom.rpc.errors import (
    DarkroomError,
    InvalidRequestError,
    NotLoadedError,
    WorkerHeldError,
    WorkerLostError,
    error_from_message,
)
from darkroom.rpc.logs import log
from darkroom.v1 import generation_pb2, plan_pb2, worker_pb2, worker_service_pb2
from services.gateway.admission import kind_of
from services.gateway.running.attempt import LAST_STEP_S, Attempt
from services.gateway.running.loading import Need, ensure_loaded, fallback_after, find_room, load_fallback
from services.gateway.running.resources import Resources
from services.gateway.store.record import Claim
from services.gateway.workers.seat import Seat

RECONNECT_S = 0.2
# A model that vanishes again and again between load and run is somebody else's doing.
MAX_RELOADS = 3

Event = TypeVar("Event")


class Batch:
    """The run of one claim.

    Args:
        means: what the gateway has.
        seat: the worker.
        attempts: one a job of the claim, of the same run.
    """

    def __init__(self, means: Resources, seat: Seat, attempts: Sequence[Attempt]) -> None:
        self._means = means
        self._seat = seat
        self._attempts = list(attempts)
        claims = [attempt.claim for attempt in attempts]
        self._token, self._run_id = claims[0].token, claims[0].run_id
        self._is_adopted = claims[0].is_adopted
        # Last event of the run that this gateway has seen.
        self._sequence = min(claim.run_sequence for claim in claims)
        # A run that told something once is not begun anew by whoever adopts it: if the worker lost it, that is a loss.
        # So is one that was adopted before in silence, or a job that takes gateway and worker with it would start over
        # for ever.
        self._has_attached = self._is_adopted and any(claim.run_sequence or claim.num_unheard > 1 for claim in claims)
        # Jobs whose failure triggers a fallback of the plan, with that failure: they run again when the run has ended.
        self._fallen: dict[str, DarkroomError] = {}

    async def run(self) -> None:
        """Serves the attempts until none is open. Never raises: they learn how it ended."""
        try:
            if not self._is_adopted:
                await self._forget_older_runs([attempt for attempt in self._open if attempt.claim.job.attempts > 1])
                await self._prepare()
            await self._make()
        except Exception as failure:  # handed to each job's own boundary
            for attempt in self._open:
                attempt.fail(failure)

    @property
    def _open(self) -> list[Attempt]:
        return [attempt for attempt in self._attempts if attempt.is_open]

    @property
    def _awaited(self) -> list[Attempt]:
        """Those that the run under way has still something to tell."""
        return [attempt for attempt in self._open if attempt.claim.job.id not in self._fallen]

    async def _prepare(self) -> None:
        """Loads, unless the worker is known to hold what the jobs need; lets those go that it has no room for."""
        need = self._need()
        if self._attempts[0].claim.job.request.images:
            # Read before a model is loaded for them.
            await self._means.inputs.fetch(self._attempts[0].claim.job.request)
        if not self._seat.covers(need.kind, self._workload()):
            await self._follow_load(ensure_loaded(self._seat, self._means.planner, need, self._token))
        most = self._means.settings.most_at_once(self._seat.device)
        room = await find_room(self._seat, self._means.planner, need, most)
        for attempt in self._open[room:]:
            attempt.fail(WorkerHeldError(f"worker {self._seat.address} has room for {room} at once; this one waits"))

    async def _follow_load(self, events: AsyncGenerator[worker_pb2.LoadEvent, None]) -> None:
        async with contextlib.aclosing(_spoken(events, self._means.settings.gateway_worker_silence_s)) as heard:
            async for event in heard:
                if event.HasField("progress"):
                    self._alive(event.progress.phase)
                    for attempt in self._open:
                        attempt.take_load(event.progress)
                elif event.HasField("fallback"):
                    reason = event.fallback.error.reason
                    log.warning("load_fell_back", trigger=int(event.fallback.trigger), reason=reason)
                    self._alive(generation_pb2.PHASE_ASSEMBLING)
                elif event.HasField("loaded"):
                    took, planned = event.loaded.measured_bytes, event.loaded.planned_bytes
                    log.info("model_loaded", measured_bytes=took, planned_bytes=planned)

    async def _make(self) -> None:
        """Runs; loads again where the worker has another model; takes the fallback that a failure triggers."""
        reloads = 0
        while self._open:
            try:
                await self._attached()
            except NotLoadedError as error:
                reloads += 1
                if self._has_attached or reloads > MAX_RELOADS:
                    raise WorkerLostError(f"worker {self._seat.address} lost the model: {error.message}") from error
                self._seat.forget_loaded()
                await self._prepare()
                continue
            if self._open:
                await self._take_fallback()

    async def _take_fallback(self) -> None:
        """Loads what the plan says to do after what the open jobs failed with, and names a new run for them."""
        error = self._fallen[self._open[0].claim.job.id]
        plan = fallback_after(self._seat.loaded_plan, error)
        if plan is None:
            raise error
        log.warning("run_falls_back", reason=error.reason, jobs=len(self._open))
        await self._forget_older_runs(self._open)
        await self._follow_load(load_fallback(self._seat, plan, self._need(), self._token))
        self._run_id = f"{self._run_id}+"
        await asyncio.gather(*(attempt.begin_run(self._run_id) for attempt in self._open))
        self._fallen.clear()
        self._sequence, self._has_attached = 0, False

    async def _attached(self) -> None:
        """Follows the run through broken connections, for as long as the worker comes back in time."""
        patience_s = self._means.settings.gateway_worker_lost_s
        broken_at: float | None = None
        while self._awaited:
            before = self._sequence
            try:
                await self._follow_run()
            except WorkerLostError:
                if self._left_s() == 0:
                    raise
                if broken_at is None or self._sequence > before:
                    broken_at = time.monotonic()
                if time.monotonic() - broken_at > patience_s:
                    raise
            except InvalidRequestError as error:
                # An older run of a job still winds down on the worker.
                again = [attempt for attempt in self._open if attempt.claim.job.attempts > 1]
                if "items.job_id" not in error.violations or not again:
                    raise
                broken_at = broken_at or time.monotonic()
                if time.monotonic() - broken_at > patience_s:
                    text = f"worker {self._seat.address} keeps an older run of {again[0].claim.job.id}"
                    raise WorkerLostError(text) from error
                await self._forget_older_runs(again)
            else:
                return
            await asyncio.sleep(RECONNECT_S)

    async def _follow_run(self) -> None:
        awaited = self._awaited
        jobs = [attempt.claim.job for attempt in awaited]
        request = worker_service_pb2.WorkerServiceGenerateRequest(
            run_id=self._run_id,
            token=self._token,
            items=[await self._item(attempt.claim) for attempt in awaited],
            after_sequence=self._sequence,
            model=jobs[0].request.model,
            must_exist=self._has_attached,
            takes_more=True,
        )
        for attempt in awaited:
            attempt.is_on_worker = True
        left_s = self._left_s()
        run = self._seat.client.generate(request, None if left_s is None else left_s + LAST_STEP_S)
        async with contextlib.aclosing(_spoken(run, self._means.settings.gateway_worker_silence_s)) as events:
            async for event in events:
                self._has_attached = True
                if event.HasField("heartbeat") or event.sequence <= self._sequence:
                    continue
                self._sequence = event.sequence
                self._hand_out(event)
                if not self._awaited:
                    return
        raise WorkerLostError(f"worker {self._seat.address} ended a run without a result")

    def _hand_out(self, event: worker_pb2.RunEvent) -> None:
        self._alive(event.progress.phase if event.HasField("progress") else generation_pb2.PHASE_SAVING)
        for attempt in self._awaited:
            if attempt.claim.job.id != event.job_id:
                continue
            error = error_from_message(event.error) if event.HasField("error") else None
            if isinstance(error, NotLoadedError):
                raise error  # the engine went between the run's beginning and its turn: no job's fault
            if error is not None and fallback_after(self._seat.loaded_plan, error) is not None:
                self._fallen[event.job_id] = error
            else:
                attempt.take(event)

    def _alive(self, phase: int) -> None:
        plan = self._seat.loaded_plan
        for attempt in self._open:
            attempt.alive(phase, plan.idle if plan is not None else None, len(self._attempts))

    async def _forget_older_runs(self, attempts: Sequence[Attempt]) -> None:
        """Ends and forgets what the worker may still have of these jobs."""
        for attempt in attempts:
            with contextlib.suppress(DarkroomError):
                await self._seat.client.acknowledge(attempt.claim.job.id, self._token)

    def _need(self) -> Need:
        request, left_s = self._attempts[0].claim.job.request, self._left_s()
        ends_at = None if left_s is None else time.monotonic() + left_s
        return Need(request.model, request.preferences, self._workload(), kind_of(request), ends_at)

    def _workload(self) -> plan_pb2.Workload:
        """One picture: how many more there is room for is asked of the plan that is loaded."""
        request = self._attempts[0].claim.job.request
        return plan_pb2.Workload(
            width=request.width,
            height=request.height,
            batch_size=1,
            num_frames=1,
            reference_images=len(request.images),
        )

    async def _item(self, claim: Claim) -> worker_pb2.RunItem:
        """The job as the worker is given it: with its pictures, unless the run is there already."""
        request = claim.job.request
        if request.images and not self._has_attached:
            request = await self._means.inputs.fetch(request)
        item = worker_pb2.RunItem(job_id=claim.job.id, request=request)
        if claim.left_s is not None:
            item.time_left.FromNanoseconds(int(claim.left_s * 1e9))
        return item

    def _left_s(self) -> float | None:
        """Seconds until nobody wants anything of the run any more; None: never."""
        lefts = [attempt.claim.left_s for attempt in self._open]
        return None if None in lefts or not lefts else max(left for left in lefts if left is not None)


async def _spoken(events: AsyncGenerator[Event, None], silence_s: float) -> AsyncGenerator[Event, None]:
    """Yields what comes; a worker that says nothing at all for too long, not even a heartbeat, is lost."""
    try:
        while True:
            try:
                async with asyncio.timeout(silence_s):
                    event = await anext(events)
            except StopAsyncIteration:
                return
            except TimeoutError as silent:
                raise WorkerLostError(f"the worker was silent for {silence_s:.0f} s") from silent
            yield event
    finally:
        await events.aclose()
