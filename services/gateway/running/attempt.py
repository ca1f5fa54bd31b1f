"""One attempt at a job on one worker: load if needed, run or re-attach, collect the file.

Knows nothing of leases, queues or what a failure means for the job. Invariant: every progress that it keeps is kept
once, under the run's own sequence, and none after the output began.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import TypeVar

from darkroom.rpc.errors import (
    DarkroomError,
    InvalidRequestError,
    NotLoadedError,
    StoreUnavailableError,
    WorkerLostError,
    error_from_message,
)
from darkroom.rpc.logs import log
from darkroom.v1 import generation_pb2, plan_pb2, worker_pb2, worker_service_pb2
from services.gateway.admission import kind_of
from services.gateway.outputs import Draft
from services.gateway.running.journal import Entry, Journal
from services.gateway.running.lease import Lease
from services.gateway.running.loading import Need, ensure_loaded, fallback_after, load_fallback
from services.gateway.running.progress import ProgressTruth
from services.gateway.running.resources import Resources
from services.gateway.store.record import Claim
from services.gateway.store.vocabulary import Wish
from services.gateway.workers.seat import Seat

RECONNECT_S = 0.2
STORE_RETRY_S = 0.1
# A model that vanishes again and again between load and run is somebody else's doing.
MAX_RELOADS = 3
# Beyond a deadline, for the step that is under way to end by itself.
LAST_STEP_S = 10.0

Event = TypeVar("Event")
Answer = TypeVar("Answer")


class Attempt:
    """One attempt.

    Args:
        means: what the gateway has.
        seat: the worker.
        claim: the job and the right to it.
        lease: told of every progress.
        stop: called when the store says that the job should stop, with why.
    """

    def __init__(self, means: Resources, seat: Seat, claim: Claim, lease: Lease, stop: Callable[[Wish], None]) -> None:
        self._means = means
        self._seat = seat
        self._claim = claim
        self._lease = lease
        self._stop = stop
        self._truth = ProgressTruth(claim.job.progress.fraction if claim.is_adopted else 0.0)
        self._journal = Journal(self._write)
        self._run_id = claim.run_id
        # Last event of the run that this gateway has seen.
        self._sequence = claim.run_sequence
        self._output: generation_pb2.Output | None = None
        # A run that told something once is not begun anew by whoever adopts it: if the worker lost it, that is a loss.
        self._has_attached = claim.is_adopted and claim.run_sequence > 0
        # True while the worker has the job, so that a cancel must go there.
        self.is_on_worker = False

    async def run(self) -> generation_pb2.Output:
        """Returns the output, whose file is committed. Raises what ended the attempt."""
        try:
            if not self._claim.is_adopted:
                if self._claim.job.attempts > 1:
                    await self._forget_older_run()
                await self._prepare()
            return await self._make()
        finally:
            await self._journal.close()

    async def _make(self) -> generation_pb2.Output:
        draft = self._means.outputs.draft(self._claim.job.id, self._claim.token.counter)
        try:
            output = await self._output_by_any_plan(draft)
            self._keep(0, self._truth.of_run(generation_pb2.Progress(phase=generation_pb2.PHASE_SAVING, fraction=1)))
            await self._journal.flush()
            await draft.commit(output)
            return output
        finally:
            draft.discard()

    async def insist(self, call: Callable[[], Awaitable[Answer]]) -> Answer:
        """Repeats a call to the store while it is away and the lease still holds."""
        while True:
            try:
                return await call()
            except StoreUnavailableError:
                if self._lease.has_run_out:
                    raise
                await asyncio.sleep(STORE_RETRY_S)

    async def _prepare(self) -> None:
        """Loads, unless the worker is known to hold what the job needs."""
        if not self._seat.covers(self._need().kind, self._workload()):
            need = self._need()
            await self._follow_load(ensure_loaded(self._seat, self._means.planner, need, self._claim.token))

    async def _follow_load(self, events: AsyncGenerator[worker_pb2.LoadEvent, None]) -> None:
        async with contextlib.aclosing(_spoken(events, self._means.settings.gateway_worker_silence_s)) as heard:
            async for event in heard:
                if event.HasField("progress"):
                    self._keep(0, self._truth.of_load(event.progress))
                elif event.HasField("fallback"):
                    reason = event.fallback.error.reason
                    log.warning("load_fell_back", trigger=int(event.fallback.trigger), reason=reason)
                    self._lease.progressed(generation_pb2.PHASE_ASSEMBLING, None)
                elif event.HasField("loaded"):
                    took, planned = event.loaded.measured_bytes, event.loaded.planned_bytes
                    log.info("model_loaded", measured_bytes=took, planned_bytes=planned)

    async def _output_by_any_plan(self, draft: Draft) -> generation_pb2.Output:
        """Runs; loads again where the worker has another model; takes the fallback that a failure triggers."""
        reloads = 0
        while True:
            try:
                return await self._attached(draft)
            except NotLoadedError as error:
                reloads += 1
                if self._has_attached or reloads > MAX_RELOADS:
                    raise WorkerLostError(f"worker {self._seat.address} lost the model: {error.message}") from error
                self._seat.forget_loaded()
                await self._prepare()
            except DarkroomError as error:
                plan = fallback_after(self._seat.loaded_plan, error)
                if plan is None:
                    raise
                await self._take_fallback(plan, error)

    async def _take_fallback(self, plan: plan_pb2.Plan, error: DarkroomError) -> None:
        """Loads what the plan says to do after `error`, and names a new run of the same attempt."""
        log.warning("run_falls_back", reason=error.reason)
        await self._forget_older_run()
        await self._follow_load(load_fallback(self._seat, plan, self._need(), self._claim.token))
        await self._journal.flush()
        run_id = f"{self._run_id}+"
        await self.insist(lambda: self._means.jobs.begin_run(self._claim, run_id))
        self._run_id, self._sequence, self._has_attached = run_id, 0, False

    async def _attached(self, draft: Draft) -> generation_pb2.Output:
        """Follows the run through broken connections, for as long as the worker comes back in time."""
        broken_at: float | None = None
        while True:
            before = self._sequence
            try:
                return await self._follow_run(draft)
            except WorkerLostError:
                if self._claim.left_s == 0:
                    raise
                if broken_at is None or self._sequence > before:
                    broken_at = time.monotonic()
                if time.monotonic() - broken_at > self._means.settings.gateway_worker_lost_s:
                    raise
            except InvalidRequestError as error:
                # An older run of this job still winds down on the worker.
                if "items.job_id" not in error.violations or self._claim.job.attempts < 2:
                    raise
                broken_at = broken_at or time.monotonic()
                if time.monotonic() - broken_at > self._means.settings.gateway_worker_lost_s:
                    raise WorkerLostError(f"worker {self._seat.address} keeps an older run of this job") from error
                await self._forget_older_run()
            await asyncio.sleep(RECONNECT_S)

    async def _follow_run(self, draft: Draft) -> generation_pb2.Output:
        job = self._claim.job
        request = worker_service_pb2.WorkerServiceGenerateRequest(
            run_id=self._run_id,
            token=self._claim.token,
            items=[worker_pb2.RunItem(job_id=job.id, request=job.request)],
            after_sequence=self._sequence,
            model=job.request.model,
        )
        self.is_on_worker = True
        silence_s = self._means.settings.gateway_worker_silence_s
        left_s = self._claim.left_s
        run = self._seat.client.generate(request, None if left_s is None else left_s + LAST_STEP_S)
        async with contextlib.aclosing(_spoken(run, silence_s)) as events:
            async for event in events:
                self._has_attached = True
                if event.HasField("heartbeat") or event.sequence <= self._sequence:
                    continue
                await self._take(event, draft)
                self._sequence = event.sequence
                if self._output is not None and draft.size_bytes >= self._output.size_bytes:
                    return self._output
        raise WorkerLostError(f"worker {self._seat.address} ended a run without a result")

    async def _take(self, event: worker_pb2.RunEvent, draft: Draft) -> None:
        if event.HasField("error"):
            raise error_from_message(event.error)
        if event.HasField("output"):
            self._output = event.output
        elif event.HasField("chunk"):
            draft.write(event.chunk)
        if event.HasField("progress") and self._output is None:
            self._keep(event.sequence, self._truth.of_run(event.progress))
        else:
            self._lease.progressed(generation_pb2.PHASE_SAVING, self._budgets())

    def _keep(self, run_sequence: int, progress: generation_pb2.Progress) -> None:
        self._lease.progressed(progress.phase, self._budgets())
        self._journal.add(run_sequence, progress)

    async def _write(self, entries: Sequence[Entry]) -> None:
        if wish := await self.insist(lambda: self._means.jobs.append(self._claim, entries)):
            self._stop(wish)

    async def _forget_older_run(self) -> None:
        """Ends and forgets what the worker may still have of this job."""
        with contextlib.suppress(DarkroomError):
            await self._seat.client.acknowledge(self._claim.job.id, self._claim.token)

    def _need(self) -> Need:
        request = self._claim.job.request
        return Need(request.model, request.preferences, self._workload(), kind_of(request), self._claim.ends_at)

    def _workload(self) -> plan_pb2.Workload:
        request = self._claim.job.request
        return plan_pb2.Workload(width=request.width, height=request.height, batch_size=1, num_frames=1)

    def _budgets(self) -> plan_pb2.IdleBudgets | None:
        plan = self._seat.loaded_plan
        return plan.idle if plan is not None else None


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
