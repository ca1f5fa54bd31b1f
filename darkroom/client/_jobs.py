"""Errands about pictures and jobs, each a few calls on a connection.

Knows nothing of how a call is made or resumed. Invariant: a generation that is left half-way cancels its job.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from typing import Any, Unpack

from darkroom.client._connection import Connection
from darkroom.client._download import PartialFile, download_output
from darkroom.client._picture import Picture
from darkroom.client._request import RequestFields, build_request, build_terms, spread_seeds
from darkroom.client._watch import is_terminal, watch_job
from darkroom.rpc.errors import DarkroomError, NoOutputError, error_from_message
from darkroom.v1 import generation_service_pb2, job_pb2

# What cancelling may take when a generation is left: a gateway that is gone must not hold up the caller's exit.
ABANDON_S = 2.0
PAGE_SIZE = 100
OnEvent = Callable[[job_pb2.JobEvent], None]


class JobMethods:
    """What a client does with jobs."""

    _connection: Connection

    # Pictures

    async def generate(
        self, prompt: str, *, on_event: OnEvent | None = None, **fields: Unpack[RequestFields]
    ) -> Picture:
        """Makes one picture: submits, watches, downloads. Cancelling the call cancels the job.

        Args:
            prompt: what to show.
            on_event: called with each change of state and each step.
            fields: see `RequestFields`.

        Raises:
            InvalidRequestError: a field is wrong; `violations` names each one.
            DeadlineError: the job was not done within `deadline_s`.
            DarkroomError: the job failed, with its reason.
        """
        return await _last_picture(self.stream(prompt, **fields), on_event)

    async def generate_many(
        self, prompt: str, *, count: int, on_event: OnEvent | None = None, **fields: Unpack[RequestFields]
    ) -> list[Picture]:
        """Makes `count` pictures with consecutive seeds, as one job each. The first failure cancels the others.

        Returns:
            The pictures in the order of their seeds. `on_event` gets the events of all jobs as they come.
        """
        jobs = await self.submit_many(prompt, count=count, **fields)
        tasks = [asyncio.create_task(_last_picture(self.follow(job), on_event)) for job in jobs]
        try:
            return list(await asyncio.gather(*tasks))
        finally:
            for task in tasks:
                # One that is cancelled already is cleaning up: a second time would cut that short.
                if not task.cancelling():
                    task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def stream(
        self, prompt: str, **fields: Unpack[RequestFields]
    ) -> AsyncGenerator[job_pb2.JobEvent | Picture, None]:
        """Makes one picture and yields its job's events, then the picture. Leaving the loop cancels the job."""
        job = await self.submit(prompt, **fields)
        async with contextlib.aclosing(self.follow(job)) as events:
            async for event in events:
                yield event

    async def follow(self, job: job_pb2.Job) -> AsyncGenerator[job_pb2.JobEvent | Picture, None]:
        """Yields a submitted job's events, then its picture. Leaving the loop cancels the job."""
        has_ended, file = is_terminal(job), PartialFile(job.id)
        try:
            async for event in watch_job(self._connection, job.id, file=file):
                if event.HasField("job"):
                    job = event.job
                    has_ended = is_terminal(job)
                yield event
            _raise_unless_succeeded(job)
            yield await self._fetch(job, file)
        finally:
            if not has_ended:
                await _abandon(self.cancel(job.id))

    # Jobs

    async def submit(
        self, prompt: str, *, request_id: str | None = None, **fields: Unpack[RequestFields]
    ) -> job_pb2.Job:
        """Submits a job and returns it as accepted, with its id and its seed. The job goes on without this client.

        Args:
            prompt: what to show.
            request_id: a UUID; submitting again with the same one returns the first job. Made here where absent, so
                that an attempt whose answer was lost is repeated safely.
            fields: see `RequestFields`.
        """
        request = generation_service_pb2.SubmitJobRequest(
            request=build_request(prompt, fields),
            request_id=request_id or str(uuid.uuid4()),
            terms=build_terms(fields),
        )
        submission = self._connection.call_through_outages(self._connection.generation.SubmitJob, request)
        try:
            response = await submission
        except asyncio.CancelledError:
            await _abandon(self._cancel_submission(request))
            raise
        job: job_pb2.Job = response.job
        return job

    async def submit_many(self, prompt: str, *, count: int, **fields: Unpack[RequestFields]) -> Sequence[job_pb2.Job]:
        """Submits `count` jobs with consecutive seeds. If one is refused, those before it are cancelled."""
        jobs: list[job_pb2.Job] = []
        try:
            for seed in spread_seeds(fields.get("seed"), count):
                fields["seed"] = seed
                jobs.append(await self.submit(prompt, **fields))
        except BaseException:
            await _abandon(self._cancel_all(jobs))
            raise
        return jobs

    async def get(self, job_id: str) -> job_pb2.Job:
        """Returns a job as it is now."""
        request = generation_service_pb2.GetJobRequest(job_id=job_id)
        job: job_pb2.Job = (
            await self._connection.call_through_outages(self._connection.generation.GetJob, request)
        ).job
        return job

    async def list_jobs(
        self, *, states: Sequence[job_pb2.JobState.ValueType] = (), limit: int = 50
    ) -> Sequence[job_pb2.Job]:
        """Returns the newest jobs, newest first; `states` keeps only some."""
        jobs: list[job_pb2.Job] = []
        request = generation_service_pb2.ListJobsRequest(states=states)
        while len(jobs) < limit:
            request.page_size = min(limit - len(jobs), PAGE_SIZE)
            page = await self._connection.call_through_outages(self._connection.generation.ListJobs, request)
            jobs.extend(page.jobs)
            request.page_token = page.next_page_token
            if not page.next_page_token:
                break
        return jobs

    async def cancel(self, job_id: str) -> job_pb2.Job:
        """Ends a job and returns it; a running one stops at its next step. A job that has ended stays as it is."""
        request = generation_service_pb2.CancelJobRequest(job_id=job_id)
        job: job_pb2.Job = (
            await self._connection.call_through_outages(self._connection.generation.CancelJob, request)
        ).job
        return job

    async def list_dead(self, *, limit: int = 50) -> Sequence[job_pb2.Job]:
        """Returns the newest dead jobs: tried too often, each with its evidence in `failed_attempts`."""
        jobs: list[job_pb2.Job] = []
        request = generation_service_pb2.ListDeadJobsRequest()
        while len(jobs) < limit:
            request.page_size = min(limit - len(jobs), PAGE_SIZE)
            page = await self._connection.call_through_outages(self._connection.generation.ListDeadJobs, request)
            jobs.extend(page.jobs)
            request.page_token = page.next_page_token
            if not page.next_page_token:
                break
        return jobs

    async def redrive(self, job_id: str, *, request_id: str | None = None) -> job_pb2.Job:
        """Submits a dead job once more and returns the new job. Repeating it returns the same one.

        Raises:
            NotDeadError: the job did not end as a dead one.
        """
        request = generation_service_pb2.RedriveJobRequest(job_id=job_id, request_id=request_id or str(uuid.uuid4()))
        job: job_pb2.Job = (
            await self._connection.call_through_outages(self._connection.generation.RedriveJob, request)
        ).job
        return job

    def watch(self, job_id: str, *, after_sequence: int = 0) -> AsyncGenerator[job_pb2.JobEvent, None]:
        """Yields a job's state and then its events up to the terminal state, resuming through outages.

        Leaving the loop does not touch the job. `after_sequence` goes on after an event that was seen before.
        """
        return watch_job(self._connection, job_id, after_sequence)

    async def wait(self, job_id: str, *, on_event: OnEvent | None = None) -> Picture:
        """Waits for a job and returns its picture. Leaving does not touch the job."""
        file = PartialFile(job_id)
        async for event in watch_job(self._connection, job_id, file=file):
            if on_event is not None:
                on_event(event)
            if event.HasField("job"):
                job = event.job
        _raise_unless_succeeded(job)
        return await self._fetch(job, file)

    async def download(self, job_id: str) -> Picture:
        """Returns the picture of a job that has succeeded."""
        job = await self.get(job_id)
        _raise_unless_succeeded(job)
        return await self._fetch(job, PartialFile(job_id))

    async def _fetch(self, job: job_pb2.Job, file: PartialFile) -> Picture:
        output, data = await download_output(self._connection, file)
        described = job_pb2.Job()
        described.CopyFrom(job)
        described.output.CopyFrom(output)
        return Picture(data, described)

    async def _cancel_all(self, jobs: Sequence[job_pb2.Job]) -> None:
        await asyncio.gather(*(self.cancel(job.id) for job in jobs), return_exceptions=True)

    async def _cancel_submission(self, request: generation_service_pb2.SubmitJobRequest) -> None:
        """Finds out the id of a job whose submission was cut short, by submitting it again, and cancels it."""
        job = (await self._connection.call(self._connection.generation.SubmitJob, request)).job
        await self.cancel(job.id)


async def _abandon(clean_up: Coroutine[Any, Any, Any]) -> None:
    """Does what is left to do for somebody who is leaving: a little while, and without a word."""
    with contextlib.suppress(DarkroomError, TimeoutError):
        async with asyncio.timeout(ABANDON_S):
            await clean_up


async def _last_picture(events: AsyncGenerator[job_pb2.JobEvent | Picture, None], on_event: OnEvent | None) -> Picture:
    async with contextlib.aclosing(events):
        async for event in events:
            if isinstance(event, Picture):
                return event
            if on_event is not None:
                on_event(event)
    raise AssertionError("unreachable: following a job ends with its picture or an error")


def _raise_unless_succeeded(job: job_pb2.Job) -> None:
    """Raises what went wrong with an ended job."""
    if job.state == job_pb2.JOB_STATE_SUCCEEDED:
        return
    if not is_terminal(job):
        raise NoOutputError(f"job {job.id} has not ended yet", job_id=job.id)
    error = error_from_message(job.error)
    error.facts.setdefault("job_id", job.id)
    raise error
