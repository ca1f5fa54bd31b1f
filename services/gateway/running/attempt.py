"""One attempt at one job: what its run tells becomes progress in the store and a file.

Knows nothing of leases, queues, of the run's other jobs, or of what a failure means for the job. Invariant: every
progress that it keeps is kept once, under the run's own sequence, and none after the output began.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from darkroom.rpc.errors import DarkroomError, StoreUnavailableError, WorkerLostError, error_from_message
from darkroom.v1 import generation_pb2, plan_pb2, worker_pb2
from services.gateway.running.journal import Journal
from services.gateway.running.lease import Lease
from services.gateway.running.progress import ProgressTruth
from services.gateway.running.resources import Resources
from services.gateway.store.driving import Entry
from services.gateway.store.record import Claim
from services.gateway.store.vocabulary import Wish

STORE_RETRY_S = 0.1
# Beyond a deadline, for the step that is under way to end by itself.
LAST_STEP_S = 10.0

Answer = TypeVar("Answer")


class Attempt:
    """One attempt.

    Args:
        means: what the gateway has.
        claim: the job and the right to it.
        lease: told of every progress.
        stop: called when the store says that the job should stop, with why.
    """

    def __init__(self, means: Resources, claim: Claim, lease: Lease, stop: Callable[[Wish], None]) -> None:
        self.claim = claim
        # True while the worker has the job, so that a cancel must go there.
        self.is_on_worker = False
        self._means = means
        self._lease = lease
        self._stop = stop
        self._truth = ProgressTruth(claim.job.progress.fraction if claim.is_adopted else 0.0)
        self._journal = Journal(self._write)
        # Last event of the run that is kept already.
        self._known_sequence = claim.run_sequence
        self._draft = means.outputs.draft(claim.job.id, claim.token.counter)
        self._output: generation_pb2.Output | None = None
        # The output, once the whole file is in the draft; or what the attempt failed with.
        self._collected: asyncio.Future[generation_pb2.Output] = asyncio.get_running_loop().create_future()

    @property
    def is_open(self) -> bool:
        """True while it waits for what its run tells."""
        return not self._collected.done()

    async def run(self) -> tuple[generation_pb2.Output, Sequence[Entry]]:
        """Returns the output, its file committed, and progress that is not kept yet. Raises what ended the attempt."""
        try:
            output = await self._collect()
            self._keep(0, self._truth.of_run(generation_pb2.Progress(phase=generation_pb2.PHASE_SAVING, fraction=1)))
            await self._draft.commit(output, self._affirm)
            return output, await self._journal.take()
        finally:
            self._collected.cancel()
            self._draft.discard()
            await self._journal.close()

    async def insist(self, call: Callable[[], Awaitable[Answer]]) -> Answer:
        """Repeats a call to the store while it is away and the lease still holds."""
        while True:
            try:
                return await call()
            except StoreUnavailableError:
                if self._lease.has_run_out:
                    raise
                await asyncio.sleep(STORE_RETRY_S)

    async def begin_run(self, run_id: str) -> None:
        """Names a new run of this attempt. What it fails with ends the attempt."""
        try:
            await self._journal.flush()
            await self.insist(lambda: self._means.jobs.begin_run(self.claim, run_id))
        except DarkroomError as failure:
            self.fail(failure)
        self._known_sequence = 0

    def alive(self, phase: int, budgets: plan_pb2.IdleBudgets | None, at_once: int) -> None:
        """The run goes on, with this job or with another of its batch."""
        self._lease.progressed(phase, budgets, at_once)

    def take_load(self, progress: generation_pb2.Progress) -> None:
        """The model that the job needs is being loaded."""
        self._guarded(lambda: self._keep(0, self._truth.of_load(progress)))

    def take(self, event: worker_pb2.RunEvent) -> None:
        """Something happened to the job in its run."""
        if event.sequence > self._known_sequence:
            self._guarded(lambda: self._take(event))

    def fail(self, failure: Exception) -> None:
        """Nothing more comes: the attempt ends with `failure`, unless it has its file already."""
        if self.is_open:
            self._collected.set_exception(failure)

    async def _collect(self) -> generation_pb2.Output:
        left_s = self.claim.left_s
        try:
            async with asyncio.timeout(None if left_s is None else left_s + LAST_STEP_S):
                return await self._collected
        except TimeoutError as late:
            raise WorkerLostError(f"worker {self.claim.job.worker_id} went on past the job's deadline") from late

    def _guarded(self, work: Callable[[], None]) -> None:
        if not self.is_open:
            return
        try:
            work()
        except Exception as failure:  # the job boundary: what one job fails with is nothing to the others of its run
            self.fail(failure)

    def _take(self, event: worker_pb2.RunEvent) -> None:
        if event.HasField("error"):
            raise error_from_message(event.error)
        if event.HasField("output"):
            self._output = event.output
        elif event.HasField("chunk"):
            self._draft.write(event.chunk)
        elif event.HasField("progress") and self._output is None:
            self._keep(event.sequence, self._truth.of_run(event.progress))
        if self._output is not None and self._draft.size_bytes >= self._output.size_bytes:
            self._collected.set_result(self._output)

    def _keep(self, run_sequence: int, progress: generation_pb2.Progress) -> None:
        self._journal.add(run_sequence, progress)

    async def _affirm(self) -> None:
        await self.insist(lambda: self._means.jobs.affirm(self.claim))

    async def _write(self, entries: Sequence[Entry]) -> None:
        if wish := await self.insist(lambda: self._means.jobs.append(self.claim, entries)):
            self._stop(wish)
