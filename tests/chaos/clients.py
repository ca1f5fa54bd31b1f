"""Clients that go through any gateway, never give up, and write down what they are told.

Knows nothing of faults: a call that fails is repeated elsewhere. Invariant: nobody starts a new job before the last one
was seen to end and its picture was read.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import random
from collections.abc import Callable, Iterator
from typing import Any

import grpc

from darkroom.rpc.status import from_rpc_error
from darkroom.v1 import generation_service_pb2 as messages
from darkroom.v1 import job_pb2
from tests.chaos.history import History
from tests.chaos.work import Task
from tests.fakes.gateway import Stubs

CALL_S = 4.0
# A stream that a stopped gateway holds is given up after this, and the next gateway asked.
STREAM_S = 12.0
PAUSE_S = 0.15
TENANT = "x-darkroom-tenant"
TERMINAL = (job_pb2.JOB_STATE_SUCCEEDED, job_pb2.JOB_STATE_FAILED, job_pb2.JOB_STATE_CANCELLED)
# Not answers about the job, but signs that somebody else should be asked.
PASSING = ("UNAVAILABLE", "STORE_UNAVAILABLE", "DRAINING", "QUEUE_FULL", "DEADLINE_EXCEEDED", "CANCELLED", "UNKNOWN")


class Client:
    """One client, with its own connections.

    Args:
        name: in the history.
        addresses: of all gateways.
        history: where to write.
        dice: which gateway is asked next.
        bound_s: how long a job may take; after that the client says so and goes on.
    """

    def __init__(
        self, name: str, addresses: list[str], history: History, dice: random.Random, bound_s: Callable[[], float]
    ) -> None:
        self._name = name
        self._gateways = [Stubs(address) for address in addresses]
        self._history = history
        self._dice = dice
        self._bound_s = bound_s

    async def close(self) -> None:
        """Ends the connections."""
        await asyncio.gather(*(gateway.channel.close() for gateway in self._gateways))

    async def do(self, task: Task) -> None:
        """Sees one job through, from the request to the picture."""
        self._tell(task, "wanted", kind=task.kind, way=task.way)
        try:
            async with asyncio.timeout(self._bound_s()):
                if task.way.startswith("generate"):
                    job_id = await self._generate(task)
                else:
                    job_id = await self._submit(task)
                await self._see_through(task, job_id)
        except TimeoutError:
            self._tell(task, "gave up")
        except grpc.aio.AioRpcError:
            pass  # told as refused, which the checker holds against the run

    async def _see_through(self, task: Task, job_id: str) -> None:
        if task.way == "submit twice":
            await self._submit(task)
        if task.way == "submit and cancel":
            await self._watch(task, job_id, task.patience)
            self._tell(task, "cancelling", job=job_id)
            cancel = messages.CancelJobRequest(job_id=job_id)
            await self._insist(task, lambda stubs: stubs.jobs.CancelJob(cancel, timeout=CALL_S))
        if task.way == "blink":
            await self._watch(task, job_id, task.patience)
        job = await self._watch(task, job_id)
        assert job is not None
        reason = job.error.reason if job.HasField("error") else ""
        state = job_pb2.JobState.Name(job.state).removeprefix("JOB_STATE_")
        self._tell(
            task, "ended", job=job.id, state=state, reason=reason, attempts=job.attempts, sha256=job.output.sha256
        )
        if job.state == job_pb2.JOB_STATE_SUCCEEDED:
            await self._download(task, job)

    async def _submit(self, task: Task) -> str:
        request = messages.SubmitJobRequest(request=task.request, request_id=task.request_id, terms=task.terms)
        tenant = (TENANT, task.tenant)
        answer = await self._insist(
            task, lambda stubs: stubs.jobs.SubmitJob(request, timeout=CALL_S, metadata=(tenant,))
        )
        self._tell(task, "accepted", job=answer.job.id)
        return str(answer.job.id)

    async def _generate(self, task: Task) -> str:
        """One stream for all; where it breaks before the job's id came, the same request is submitted again."""
        request = messages.GenerateRequest(request=task.request, request_id=task.request_id, terms=task.terms)
        job_id, seen = "", 0
        call = self._gateway().jobs.Generate(request, timeout=STREAM_S, metadata=((TENANT, task.tenant),))
        with self._broken(task), self._watching(task) as told, _leaving(call) as answers:
            async for answer in answers:
                if not answer.HasField("event"):
                    break
                if not job_id:
                    job_id = answer.event.job.id
                    self._tell(task, "accepted", job=job_id)
                told(answer.event)
                seen += 1
                if task.way == "generate and drop" and seen >= task.patience:
                    self._tell(task, "dropped", job=job_id)
                    break
        return job_id or await self._submit(task)

    async def _watch(self, task: Task, job_id: str, most: int = 10**6) -> job_pb2.Job | None:
        """Follows the job through any gateway to its end, or for `most` events. Returns it once it has ended."""
        cursor, seen = 0, 0
        while True:
            request = messages.WatchJobRequest(job_id=job_id, after_sequence=cursor)
            call = self._gateway().jobs.WatchJob(request, timeout=STREAM_S)
            with self._broken(task), self._watching(task) as told, _leaving(call) as answers:
                async for answer in answers:
                    told(answer.event)
                    cursor, seen = answer.event.sequence, seen + 1
                    if answer.event.HasField("job") and answer.event.job.state in TERMINAL:
                        return answer.event.job
                    if seen >= most:
                        return None
            await asyncio.sleep(PAUSE_S)

    async def _download(self, task: Task, job: job_pb2.Job) -> None:
        data = bytearray()
        while len(data) < job.output.size_bytes:
            request = messages.DownloadOutputRequest(job_id=job.id, offset=len(data))
            call = self._gateway().jobs.DownloadOutput(request, timeout=STREAM_S)
            with self._broken(task), _leaving(call) as answers:
                async for answer in answers:
                    data += answer.chunk.data
            if len(data) < job.output.size_bytes:
                await asyncio.sleep(PAUSE_S)
        sha256 = hashlib.sha256(data).hexdigest()
        self._tell(task, "read", job=job.id, size_bytes=len(data), sha256=sha256)

    async def _insist(self, task: Task, call: Callable[[Stubs], Any]) -> Any:
        while True:
            with self._broken(task):
                return await call(self._gateway())
            await asyncio.sleep(PAUSE_S)

    @contextlib.contextmanager
    def _broken(self, task: Task) -> Iterator[None]:
        """Tells of a call that failed on its way; one that was refused for good is told as such, and raised."""
        try:
            yield
        except grpc.aio.UsageError:
            pass
        except grpc.aio.AioRpcError as failure:
            reason = from_rpc_error(failure).reason
            self._tell(task, "broken", code=failure.code().name, reason=reason)
            if reason not in PASSING and failure.code() is not grpc.StatusCode.UNAVAILABLE:
                self._tell(task, "refused", reason=reason, text=failure.details())
                raise

    @contextlib.contextmanager
    def _watching(self, task: Task) -> Iterator[Callable[[job_pb2.JobEvent], None]]:
        """Gives a function that keeps the events of one stream, which are told together when it ends."""
        seen: list[list[Any]] = []

        def told(event: job_pb2.JobEvent) -> None:
            if event.HasField("job"):
                seen.append([event.sequence, "job", event.job.state])
            else:
                done = event.progress
                seen.append([event.sequence, done.phase, round(done.fraction, 4), done.completed, done.total])

        try:
            yield told
        finally:
            self._tell(task, "watched", events=seen)

    def _gateway(self) -> Stubs:
        return self._dice.choice(self._gateways)

    def _tell(self, task: Task, what: str, **facts: Any) -> None:
        self._history.tell(what, client=self._name, task=task.number, **facts)


@contextlib.contextmanager
def _leaving(call: Any) -> Iterator[Any]:
    """Ends the stream at the server, too, when its reader leaves."""
    try:
        yield call
    finally:
        call.cancel()
