"""Follows a job by its events, across gateways that come and go.

A file that follows is taken as far as it comes. Invariant: sequence numbers only rise, and a watch ends with the
terminal state or an error.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Iterator

from darkroom.client._connection import Connection
from darkroom.client._download import PartialFile
from darkroom.rpc.errors import DarkroomError, DeadlineError, UnavailableError
from darkroom.v1 import generation_service_pb2, job_pb2

# A watch is opened anew by its cursor after this time, so that no stream outlives a connection's age limit.
SEGMENT_S = 600.0
TERMINAL_STATES = (job_pb2.JOB_STATE_SUCCEEDED, job_pb2.JOB_STATE_FAILED, job_pb2.JOB_STATE_CANCELLED)


def is_terminal(job: job_pb2.Job) -> bool:
    """True once nothing changes any more."""
    return job.state in TERMINAL_STATES


async def watch_job(
    connection: Connection, job_id: str, after_sequence: int = 0, file: PartialFile | None = None
) -> AsyncGenerator[job_pb2.JobEvent, None]:
    """Yields the job's state, then what happens, up to the terminal state.

    Args:
        connection: to any gateway that shares the job's store.
        job_id: of the job.
        after_sequence: a cursor: only what follows the event of this number, beside the state.
        file: takes the job's file, or what comes of it, after the last event.

    Raises:
        UnknownJobError: there is no such job.
        UnavailableError: no gateway answered for longer than the client's patience.
    """
    cursor = after_sequence
    is_first, has_ended = True, False
    outage = connection.outage()
    while True:
        request = generation_service_pb2.WatchJobRequest(
            job_id=job_id, after_sequence=cursor, takes_more=True, with_output=file is not None
        )
        stream = connection.stream(connection.generation.WatchJob, request, timeout_s=SEGMENT_S)
        try:
            async with contextlib.aclosing(stream) as responses:
                async for response in responses:
                    outage.end()
                    if file is not None and response.HasField("chunk"):
                        file.append(response.chunk)
                    for event in _events(response):
                        has_ended = event.HasField("job") and is_terminal(event.job)
                        if is_first or has_ended or event.sequence > cursor:
                            is_first = False
                            cursor = max(cursor, event.sequence)
                            yield event
                        if has_ended and file is not None and event.job.state == job_pb2.JOB_STATE_SUCCEEDED:
                            file.describe(event.job.output)
                    if has_ended and (file is None or file.output is None or file.is_whole):
                        return
            if has_ended:
                return
            await outage.wait(UnavailableError(f"the watch of job {job_id} ended before the job"))
        except DarkroomError as error:
            if has_ended:
                return  # a file that broke off is another call's
            if not isinstance(error, DeadlineError):
                await outage.wait(error)


def _events(response: generation_service_pb2.WatchJobResponse) -> Iterator[job_pb2.JobEvent]:
    if response.HasField("event"):
        yield response.event
        yield from response.more
