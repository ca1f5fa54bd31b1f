"""GenerationService: jobs.

Knows nothing of how jobs are kept or run. Invariant: only a drop that a living gateway sees cancels a `Generate`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import TypeAlias

import grpc

from darkroom.rpc.errors import DarkroomError, DrainingError, InvalidRequestError, NoOutputError
from darkroom.rpc.logs import log
from darkroom.rpc.paging import make_token, page_size, read_token
from darkroom.rpc.request_ids import check_request_id
from darkroom.v1 import generation_pb2, generation_service_pb2, generation_service_pb2_grpc, job_pb2, worker_pb2
from services.gateway.admission import FindModel, admit, bare, check_terms, find_tenant, kind_of, shape_of
from services.gateway.inputs import Inputs
from services.gateway.outputs import Outputs
from services.gateway.store.asking import digest_of
from services.gateway.store.events import Events
from services.gateway.store.jobs import Jobs
from services.gateway.store.record import is_terminal
from services.gateway.store.vocabulary import Bounds

Context: TypeAlias = grpc.aio.ServicerContext
Submission: TypeAlias = generation_service_pb2.SubmitJobRequest | generation_service_pb2.GenerateRequest
ALL_STATES = job_pb2.JobState.values()[1:]


class GenerationServicer(generation_service_pb2_grpc.GenerationServiceServicer):  # type: ignore[misc]
    """Serves jobs.

    Args:
        explain: tells why no job can run now; "" where one can.
        find_model: the catalogue's look-up.
        drained: set when this gateway has stopped driving jobs; ends the streams.
    """

    def __init__(
        self,
        jobs: Jobs,
        events: Events,
        outputs: Outputs,
        inputs: Inputs,
        explain: Callable[[], str],
        find_model: FindModel,
        bounds: Bounds,
        drained: asyncio.Event,
    ) -> None:
        self._jobs = jobs
        self._events = events
        self._outputs = outputs
        self._inputs = inputs
        self._explain_waiting = explain
        self._find_model = find_model
        self._bounds = bounds
        self._drained = drained
        self.is_stopping = False
        self._cancels: set[asyncio.Task[None]] = set()

    async def SubmitJob(
        self, request: generation_service_pb2.SubmitJobRequest, context: Context
    ) -> generation_service_pb2.SubmitJobResponse:
        return generation_service_pb2.SubmitJobResponse(job=await self._submit(request, context))

    async def GetJob(
        self, request: generation_service_pb2.GetJobRequest, context: Context
    ) -> generation_service_pb2.GetJobResponse:
        return generation_service_pb2.GetJobResponse(job=self._explained(await self._jobs.get(request.job_id)))

    async def ListJobs(
        self, request: generation_service_pb2.ListJobsRequest, context: Context
    ) -> generation_service_pb2.ListJobsResponse:
        size = page_size(request.page_size, 50, 500)
        states = sorted(set(request.states)) or ALL_STATES
        if unknown := [state for state in states if state not in ALL_STATES]:
            raise InvalidRequestError(
                {"states": f"holds {unknown[0]}; known are {', '.join(job_pb2.JobState.keys()[1:])}"}
            )
        query = f"jobs {states}"
        found = await self._jobs.newest(states, read_token(request.page_token, query), size + 1)
        token = make_token(found[size - 1].id, query) if len(found) > size else ""
        return generation_service_pb2.ListJobsResponse(jobs=found[:size], next_page_token=token)

    async def CancelJob(
        self, request: generation_service_pb2.CancelJobRequest, context: Context
    ) -> generation_service_pb2.CancelJobResponse:
        job = await self._jobs.cancel(request.job_id)
        log.info("cancel_asked", job_id=job.id, state=job_pb2.JobState.Name(job.state))
        return generation_service_pb2.CancelJobResponse(job=job)

    async def WatchJob(
        self, request: generation_service_pb2.WatchJobRequest, context: Context
    ) -> AsyncIterator[generation_service_pb2.WatchJobResponse]:
        if request.after_sequence < 0:
            raise InvalidRequestError({"after_sequence": f"is {request.after_sequence}; send 0 for all events"})
        job = job_pb2.Job()
        async with contextlib.aclosing(self._watch(request.job_id, request.after_sequence)) as pages:
            async for events in pages:
                job = events[-1].job
                if request.takes_more:
                    yield generation_service_pb2.WatchJobResponse(event=events[0], more=events[1:])
                    continue
                for event in events:
                    yield generation_service_pb2.WatchJobResponse(event=event)
        if request.with_output and job.state == job_pb2.JOB_STATE_SUCCEEDED:
            async for chunk in self._chunks(job, 0):
                yield generation_service_pb2.WatchJobResponse(chunk=chunk)

    async def DownloadOutput(
        self, request: generation_service_pb2.DownloadOutputRequest, context: Context
    ) -> AsyncIterator[generation_service_pb2.DownloadOutputResponse]:
        job = await self._jobs.get(request.job_id)
        if job.state != job_pb2.JOB_STATE_SUCCEEDED:
            state = job_pb2.JobState.Name(job.state).removeprefix("JOB_STATE_").lower()
            raise NoOutputError(f"job {job.id} is {state}; only succeeded jobs have a file", job_id=job.id)
        is_first = True
        async for chunk in self._chunks(job, request.offset):
            if is_first:
                yield generation_service_pb2.DownloadOutputResponse(output=job.output)
                is_first = False
            yield generation_service_pb2.DownloadOutputResponse(chunk=chunk)
        if is_first:
            yield generation_service_pb2.DownloadOutputResponse(output=job.output)

    async def Generate(
        self, request: generation_service_pb2.GenerateRequest, context: Context
    ) -> AsyncIterator[generation_service_pb2.GenerateResponse]:
        job = await self._submit(request, context)
        try:
            async for events in self._watch(job.id, 0):
                for event in events:
                    if event.HasField("job"):
                        job = event.job
                    yield generation_service_pb2.GenerateResponse(event=event)
            if job.state == job_pb2.JOB_STATE_SUCCEEDED:
                async for chunk in self._chunks(job, 0):
                    yield generation_service_pb2.GenerateResponse(chunk=chunk)
        except (asyncio.CancelledError, GeneratorExit):
            # Nothing else is a drop: where the store is away the stream ends, and the client resumes by WatchJob.
            if not is_terminal(job) and not self.is_stopping:
                self._cancel_later(job.id)
            raise

    async def ListDeadJobs(
        self, request: generation_service_pb2.ListDeadJobsRequest, context: Context
    ) -> generation_service_pb2.ListDeadJobsResponse:
        size = page_size(request.page_size, 50, 500)
        found = await self._jobs.dead(read_token(request.page_token, "dead"), size + 1)
        token = make_token(found[size - 1].id, "dead") if len(found) > size else ""
        return generation_service_pb2.ListDeadJobsResponse(jobs=found[:size], next_page_token=token)

    async def RedriveJob(
        self, request: generation_service_pb2.RedriveJobRequest, context: Context
    ) -> generation_service_pb2.RedriveJobResponse:
        check_request_id(request.request_id)
        job = await self._jobs.redrive(request.job_id, request.request_id.lower(), self._bounds)
        log.info("job_redriven", job_id=job.id, dead_job_id=request.job_id)
        return generation_service_pb2.RedriveJobResponse(job=self._explained(job))

    async def close(self) -> None:
        """Waits for cancellations that dropped streams have left."""
        await asyncio.gather(*self._cancels, return_exceptions=True)
        await self._events.close()

    async def _submit(self, asked: Submission, context: Context) -> job_pb2.Job:
        tenant = find_tenant(context.invocation_metadata() or ())
        check_request_id(asked.request_id)
        check_terms(asked.terms)
        # Megabytes are read and hashed beside the loop.
        files = [image.data for image in asked.request.images]
        request, find_model = asked.request, self._find_model
        full = await asyncio.to_thread(admit, request, find_model) if files else admit(request, find_model)
        if files:
            await self._inputs.keep(files)
        digest = digest_of(bare(request, full), asked.terms)
        job = await self._jobs.submit(
            full, kind_of(full), asked.request_id.lower(), digest, self._bounds, asked.terms, tenant, shape_of(full)
        )
        if files:
            await self._inputs.keep_missing(files)
        log.info("job_accepted", job_id=job.id, model=full.model, tenant=tenant)
        return self._explained(job)

    async def _watch(self, job_id: str, after: int) -> AsyncGenerator[list[job_pb2.JobEvent], None]:
        """The job's events, those together that are there, until it ends or this gateway does."""

        async def on_quiet(job: job_pb2.Job) -> None:
            if self._drained.is_set() and not is_terminal(job):
                text = "this gateway is stopping; watch the job again, the next one answers"
                raise DrainingError(text, retry_after_s=1.0, job_id=job.id)
            if job.state == job_pb2.JOB_STATE_QUEUED and (problem := self._explain_waiting()):
                await self._jobs.note(job.id, _waiting(problem))

        async with contextlib.aclosing(self._events.watch(job_id, after, on_quiet)) as pages:
            async for events in pages:
                for event in events:
                    if event.HasField("job"):
                        self._explained(event.job)
                yield events

    async def _chunks(self, job: job_pb2.Job, offset: int) -> AsyncGenerator[worker_pb2.OutputChunk, None]:
        counter = await self._jobs.file_token(job.id)
        async with contextlib.aclosing(self._outputs.read(job.id, counter, job.output, offset)) as chunks:
            async for chunk in chunks:
                yield chunk

    def _explained(self, job: job_pb2.Job) -> job_pb2.Job:
        """A queued job says why it waits, where that is not other jobs."""
        if job.state == job_pb2.JOB_STATE_QUEUED:
            job.progress.phase = generation_pb2.PHASE_QUEUED
            if problem := self._explain_waiting():
                job.progress.CopyFrom(_waiting(problem))
        return job

    def _cancel_later(self, job_id: str) -> None:
        """The stream is gone, and this task with it: another one cancels the job."""

        async def cancel() -> None:
            with contextlib.suppress(DarkroomError):
                await self._jobs.cancel(job_id)
                log.info("dropped_stream_cancels", job_id=job_id)

        task = asyncio.create_task(cancel(), name=f"dropped-{job_id}")
        self._cancels.add(task)
        task.add_done_callback(self._cancels.discard)


def _waiting(problem: str) -> generation_pb2.Progress:
    return generation_pb2.Progress(phase=generation_pb2.PHASE_QUEUED, detail=problem)
