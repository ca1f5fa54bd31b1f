"""A fake job: its record, its events, and who watches them.

Knows nothing of gRPC. Invariant: sequence numbers rise by one, and nothing follows the terminal event.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import AsyncGenerator

from darkroom.client._watch import is_terminal
from darkroom.client.fakes._paint import paint
from darkroom.rpc.errors import CancelledError, DarkroomError, DeadlineError, error_to_message
from darkroom.v1 import generation_pb2, job_pb2

# How a dead job fails.
DEADLY = ("POISON", "WORKER_LOST")


class FakeJob:
    """One job from acceptance to its end."""

    def __init__(
        self, job_id: str, request: generation_pb2.GenerationRequest, terms: job_pb2.JobTerms, tenant: str
    ) -> None:
        self.record = job_pb2.Job(
            id=job_id, state=job_pb2.JOB_STATE_QUEUED, request=request, terms=terms, tenant=tenant
        )
        self.record.created_at.GetCurrentTime()
        if terms.HasField("deadline"):
            ends_at = self.record.created_at.ToNanoseconds() + terms.deadline.ToNanoseconds()
            self.record.deadline_at.FromNanoseconds(ends_at)
        self.data = b""
        self.events: list[job_pb2.JobEvent] = []
        self._grown = asyncio.Event()
        self.task: asyncio.Task[None] | None = None
        self._tell_state()

    @property
    def is_dead(self) -> bool:
        """True if it was tried too often, and not re-driven."""
        return self.record.error.reason in DEADLY and not self.record.redriven_as

    async def run(self, step_s: float, failure: DarkroomError | None) -> None:
        """Goes through every phase, and ends with a picture or with the given failure."""
        record = self.record
        record.state = job_pb2.JOB_STATE_RUNNING
        record.attempts, record.worker_id = 1, "fake-cpu"
        record.started_at.GetCurrentTime()
        self._tell_state()
        self._tell_progress(generation_pb2.PHASE_ENCODING, 0, 0, 0.0)
        steps = record.request.steps
        for step in range(1, steps + 1):
            await asyncio.sleep(step_s)
            self._tell_progress(generation_pb2.PHASE_DENOISING, step, steps, 0.9 * step / steps)
        self._tell_progress(generation_pb2.PHASE_DECODING, 0, 0, 0.95)
        if failure is not None:
            self._end(job_pb2.JOB_STATE_FAILED, failure)
        else:
            self._succeed()

    def cancel(self) -> None:
        """Ends the job unless it has ended."""
        if not is_terminal(self.record):
            if self.task is not None:
                self.task.cancel()
            self._end(job_pb2.JOB_STATE_CANCELLED, CancelledError(f"job {self.record.id} was cancelled"))

    def expire(self) -> None:
        """Fails the job unless it has ended: its deadline passed."""
        if not is_terminal(self.record):
            if self.task is not None:
                self.task.cancel()
            self._end(job_pb2.JOB_STATE_FAILED, DeadlineError("the job's deadline passed before its end"))

    async def watch(self, after_sequence: int) -> AsyncGenerator[job_pb2.JobEvent, None]:
        """Yields the state, then the events after the cursor, up to the terminal one."""
        state = job_pb2.JobEvent(sequence=self.record.last_sequence)
        state.job.CopyFrom(self.record)
        yield state
        if is_terminal(state.job):
            return
        seen = max(after_sequence, state.sequence)
        while True:
            for event in self.events[seen:]:
                seen = event.sequence
                yield event
                if event.HasField("job") and is_terminal(event.job):
                    return
            if len(self.events) <= seen:
                self._grown.clear()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._grown.wait(), 1.0)

    def _succeed(self) -> None:
        self.data = paint(self.record.request)
        output = self.record.output
        output.content_type = "image/png"
        output.size_bytes = len(self.data)
        output.sha256 = hashlib.sha256(self.data).hexdigest()
        output.width, output.height = self.record.request.width, self.record.request.height
        output.seed = self.record.request.seed
        output.engagements.add(knob="scheme", requested="auto", resolved="none", engaged="none")
        self._end(job_pb2.JOB_STATE_SUCCEEDED)

    def _end(self, state: job_pb2.JobState.ValueType, error: DarkroomError | None = None) -> None:
        self.record.state = state
        if error is not None:
            self.record.error.CopyFrom(error_to_message(error))
        self.record.finished_at.GetCurrentTime()
        self._tell_state()

    def _tell_progress(self, phase: generation_pb2.Phase.ValueType, done: int, total: int, fraction: float) -> None:
        progress = generation_pb2.Progress(phase=phase, completed=done, total=total, fraction=fraction)
        self.record.progress.CopyFrom(progress)
        self._append(job_pb2.JobEvent(progress=progress))

    def _tell_state(self) -> None:
        self.record.last_sequence = len(self.events) + 1
        self._append(job_pb2.JobEvent(job=self.record))

    def _append(self, event: job_pb2.JobEvent) -> None:
        event.sequence = self.record.last_sequence = len(self.events) + 1
        self.events.append(event)
        self._grown.set()
