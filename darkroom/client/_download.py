"""Fetches the file of a job in pieces, goes on where an outage cut it, and checks the whole.

Knows nothing of pictures. Invariant: what it returns has the size and the SHA-256 that the gateway told.
"""

from __future__ import annotations

import contextlib
import hashlib

from darkroom.client._connection import Connection
from darkroom.rpc.errors import DarkroomError, DataLossError, UnavailableError
from darkroom.v1 import generation_pb2, generation_service_pb2, worker_pb2

# One attempt at a file; what it has fetched by then is kept and the next one goes on from there.
ATTEMPT_S = 300.0


async def download_output(connection: Connection, file: PartialFile) -> tuple[generation_pb2.Output, bytes]:
    """Fetches what is missing of a succeeded job's file, if anything; returns its description and its bytes.

    Raises:
        NoOutputError: the job has no file.
        UnknownJobError: there is no such job.
        DataLossError: the bytes are not those that the gateway described.
    """
    outage = connection.outage()
    while True:
        have_bytes = len(file.data)
        try:
            if not file.is_whole:
                await _fetch_rest(connection, file)
            if file.is_whole:
                return file.checked()
            raise UnavailableError(f"the file of job {file.job_id} ended after {len(file.data)} bytes")
        except DarkroomError as error:
            if len(file.data) > have_bytes:
                outage.end()
            await outage.wait(error)


class PartialFile:
    """What has arrived of a job's file so far."""

    def __init__(self, job_id: str) -> None:
        self.job_id = job_id
        self.output: generation_pb2.Output | None = None
        self.data = bytearray()

    def describe(self, output: generation_pb2.Output) -> None:
        """Takes what is told of the file. Raises DataLossError where that has changed."""
        if self.output is not None and self.output.sha256 != output.sha256:
            raise DataLossError(f"the file of job {self.job_id} changed while it was fetched")
        self.output = output

    def append(self, chunk: worker_pb2.OutputChunk) -> None:
        """Takes the next piece; a gap, an overlap or a byte too much is a fault of the sender."""
        size_bytes = self.output.size_bytes if self.output else 0
        if chunk.offset != len(self.data) or chunk.offset + len(chunk.data) > size_bytes:
            raise DataLossError(f"the file of job {self.job_id} has a piece out of place at byte {chunk.offset}")
        self.data += chunk.data

    @property
    def is_whole(self) -> bool:
        """True once every byte is there."""
        return self.output is not None and len(self.data) == self.output.size_bytes

    def checked(self) -> tuple[generation_pb2.Output, bytes]:
        """Returns description and bytes of a whole file. Raises DataLossError where they don't fit."""
        assert self.output is not None
        data = bytes(self.data)
        if hashlib.sha256(data).hexdigest() != self.output.sha256:
            raise DataLossError(f"the file of job {self.job_id} does not have the SHA-256 that the gateway told")
        return self.output, data


async def _fetch_rest(connection: Connection, file: PartialFile) -> None:
    request = generation_service_pb2.DownloadOutputRequest(job_id=file.job_id, offset=len(file.data))
    stream = connection.stream(connection.generation.DownloadOutput, request, timeout_s=ATTEMPT_S)
    async with contextlib.aclosing(stream) as responses:
        async for response in responses:
            if response.WhichOneof("part") == "output":
                file.describe(response.output)
            else:
                file.append(response.chunk)
