"""Follows a job by its events, across gateways that come and go.

Knows nothing of files. Invariant: sequence numbers only rise, and a watch ends with the terminal state or an error.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator

from darkroom.client._connection import Connection
from darkroom.rpc.errors import DarkroomError, DeadlineError, UnavailableError
from darkroom.v1 import generation_service_pb2, job_pb2

# A watch is opened anew by its cursor after this time, so that no stream outlives a connection's age limit.
SEGMENT_S = 600.0
TERMINAL_STATES = (job_pb2.JOB_STATE_SUCCEEDED, job_pb2.JOB_STATE_FAILED, job_pb2.JOB_STATE_CANCELLED)


def is_terminal(job: job_pb2.Job) -> bool:
    """True once nothing changes any more."""
    return job.state in TERMINAL_STATES


async def watch_job(
    connection: Connection, job_id: str, after_sequence: int = 0
) -> AsyncGenerator[job_pb2.JobEvent, None]:
    """Yields the job's state, then what happens, up to the terminal state.

    Args:
        connection: to any gateway that shares the job's store.
        job_id: of the job.
        after_sequence: a cursor: only what follows the event of this number, beside the state.

    Raises:
        UnknownJobError: there is no such job.
        UnavailableError: no gateway answered for longer than the client's patience.
    """
    cursor = after_sequence
    is_first = True
    outage = connection.outage()
    while True:
        request = generation_service_pb2.WatchJobRequest(job_id=job_id, after_sequence=cursor)
        stream = connection.stream(connection.generation.WatchJob, request, timeout_s=SEGMENT_S)
        try:
            async with contextlib.aclosing(stream) as responses:
                async for response in responses:
                    event = response.event
                    outage.end()
                    has_ended = event.HasField("job") and is_terminal(event.job)
                    if is_first or has_ended or event.sequence > cursor:
                        is_first = False
                        cursor = max(cursor, event.sequence)
                        yield event
                    if has_ended:
                        return
            await outage.wait(UnavailableError(f"the watch of job {job_id} ended before the job"))
        except DeadlineError:
            continue
        except DarkroomError as error:
            await outage.wait(error)
