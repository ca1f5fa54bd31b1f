"""The clients over real sockets, against servicers that fail in one way each."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import time
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from darkroom.client import AsyncClient, errors
from darkroom.rpc.handlers import add_servicer
from darkroom.v1 import generation_pb2, generation_service_pb2, generation_service_pb2_grpc, job_pb2, worker_pb2

SERVICE = generation_service_pb2.DESCRIPTOR.services_by_name["GenerationService"]
DATA = bytes(range(256)) * 40


class Gateway(generation_service_pb2_grpc.GenerationServiceServicer):  # type: ignore[misc]
    """Counts calls; a test gives it the one method that it is about."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    async def SubmitJob(self, request, context):  # type: ignore[no-untyped-def]
        self.calls.append(request)
        return generation_service_pb2.SubmitJobResponse(job=job(job_pb2.JOB_STATE_QUEUED))

    async def GetJob(self, request, context):  # type: ignore[no-untyped-def]
        return generation_service_pb2.GetJobResponse(job=job(job_pb2.JOB_STATE_SUCCEEDED))

    async def CancelJob(self, request, context):  # type: ignore[no-untyped-def]
        self.calls.append(request)
        return generation_service_pb2.CancelJobResponse(job=job(job_pb2.JOB_STATE_CANCELLED))

    async def ListJobs(self, request, context):  # type: ignore[no-untyped-def]
        return generation_service_pb2.ListJobsResponse()

    async def WatchJob(self, request, context):  # type: ignore[no-untyped-def]
        yield generation_service_pb2.WatchJobResponse()

    async def DownloadOutput(self, request, context):  # type: ignore[no-untyped-def]
        yield generation_service_pb2.DownloadOutputResponse()

    async def Generate(self, request, context):  # type: ignore[no-untyped-def]
        yield generation_service_pb2.GenerateResponse()


def job(state: job_pb2.JobState.ValueType, sequence: int = 1) -> job_pb2.Job:
    return job_pb2.Job(id="j1", state=state, last_sequence=sequence, output=OUTPUT)


def state_event(state: job_pb2.JobState.ValueType, sequence: int) -> generation_service_pb2.WatchJobResponse:
    return generation_service_pb2.WatchJobResponse(event=job_pb2.JobEvent(sequence=sequence, job=job(state, sequence)))


def step_event(sequence: int) -> generation_service_pb2.WatchJobResponse:
    progress = generation_pb2.Progress(phase=generation_pb2.PHASE_DENOISING, completed=sequence, total=20)
    return generation_service_pb2.WatchJobResponse(event=job_pb2.JobEvent(sequence=sequence, progress=progress))


OUTPUT = generation_pb2.Output(
    content_type="image/png", size_bytes=len(DATA), sha256=hashlib.sha256(DATA).hexdigest(), seed=7
)


@contextlib.asynccontextmanager
async def serving(servicer: Gateway, port: int = 0) -> AsyncIterator[int]:
    server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
    add_servicer(server, servicer, SERVICE)
    port = server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    try:
        yield port
    finally:
        await server.stop(0)


def client_of(port: int, **options: float) -> AsyncClient:
    return AsyncClient(f"127.0.0.1:{port}", **options)


async def test_a_watch_that_breaks_goes_on_after_the_last_event_that_came() -> None:
    class Breaking(Gateway):
        async def WatchJob(self, request, context):  # type: ignore[no-untyped-def]
            self.calls.append(request.after_sequence)
            if len(self.calls) == 1:
                yield state_event(job_pb2.JOB_STATE_RUNNING, 1)
                yield step_event(2)
                yield step_event(3)
                raise errors.DrainingError("this gateway is stopping", retry_after_s=0.01)
            yield state_event(job_pb2.JOB_STATE_RUNNING, 3)
            yield step_event(4)
            yield state_event(job_pb2.JOB_STATE_SUCCEEDED, 5)

    servicer = Breaking()
    async with serving(servicer) as port, client_of(port) as client:
        seen = [event.sequence async for event in client.watch("j1")]
    assert servicer.calls == [0, 3]
    assert seen == [1, 2, 3, 4, 5]


async def test_a_watch_survives_a_gateway_that_is_replaced() -> None:
    class First(Gateway):
        async def WatchJob(self, request, context):  # type: ignore[no-untyped-def]
            yield state_event(job_pb2.JOB_STATE_RUNNING, 1)
            yield step_event(2)
            await asyncio.sleep(60)

    class Second(Gateway):
        async def WatchJob(self, request, context):  # type: ignore[no-untyped-def]
            self.calls.append(request.after_sequence)
            yield state_event(job_pb2.JOB_STATE_SUCCEEDED, 9)

    second, seen = Second(), []
    async with contextlib.AsyncExitStack() as first:
        port = await first.enter_async_context(serving(First()))
        async with client_of(port) as client:
            async for event in client.watch("j1"):
                seen.append(event.sequence)
                if event.sequence == 2:
                    await first.aclose()
                    successor = contextlib.AsyncExitStack()
                    await successor.enter_async_context(serving(second, port))
        await successor.aclose()
    assert seen == [1, 2, 9]
    assert second.calls == [2]


async def test_a_watch_that_ends_before_its_job_is_taken_up_again() -> None:
    class Forgetful(Gateway):
        async def WatchJob(self, request, context):  # type: ignore[no-untyped-def]
            self.calls.append(request.after_sequence)
            yield state_event(job_pb2.JOB_STATE_SUCCEEDED if len(self.calls) > 2 else job_pb2.JOB_STATE_RUNNING, 1)

    servicer = Forgetful()
    async with serving(servicer) as port, client_of(port) as client:
        seen = [event.job.state async for event in client.watch("j1")]
    assert servicer.calls == [0, 1, 1]
    assert seen == [job_pb2.JOB_STATE_RUNNING, job_pb2.JOB_STATE_SUCCEEDED]


async def test_a_gateway_that_stays_away_ends_the_watch_when_patience_does() -> None:
    class Leaving(Gateway):
        async def WatchJob(self, request, context):  # type: ignore[no-untyped-def]
            yield state_event(job_pb2.JOB_STATE_RUNNING, 1)
            await asyncio.sleep(60)

    async with contextlib.AsyncExitStack() as server:
        port = await server.enter_async_context(serving(Leaving()))
        async with client_of(port, patience_s=0.5) as client:
            began = time.monotonic()
            events = client.watch("j1")
            await anext(events)
            await server.aclose()
            with pytest.raises(errors.UnavailableError, match="no gateway answers at"):
                await anext(events)
    assert 0.4 < time.monotonic() - began < 5


async def test_a_submission_whose_answer_was_lost_is_repeated_with_the_same_id() -> None:
    class Losing(Gateway):
        async def SubmitJob(self, request, context):  # type: ignore[no-untyped-def]
            self.calls.append(request.request_id)
            if len(self.calls) == 1:
                raise errors.StoreUnavailableError("Redis does not answer")
            return generation_service_pb2.SubmitJobResponse(job=job(job_pb2.JOB_STATE_QUEUED))

    servicer = Losing()
    async with serving(servicer) as port, client_of(port) as client:
        assert (await client.submit("a house")).id == "j1"
    first, second = servicer.calls
    assert first == second
    assert len(first) == 36


@pytest.mark.parametrize("error", [errors.QueueFullError("full", retry_after_s=1.0), errors.NoWorkerError("nobody")])
async def test_an_answer_that_patience_does_not_change_is_raised_at_once(error: errors.DarkroomError) -> None:
    class Refusing(Gateway):
        async def SubmitJob(self, request, context):  # type: ignore[no-untyped-def]
            self.calls.append(request)
            raise error

    servicer = Refusing()
    async with serving(servicer) as port, client_of(port) as client:
        with pytest.raises(type(error)) as raised:
            await client.submit("a house")
    assert raised.value.retry_after_s == error.retry_after_s
    assert len(servicer.calls) == 1


async def test_a_gateway_that_never_answered_is_not_waited_for() -> None:
    async with client_of(1) as client:
        began = time.monotonic()
        with pytest.raises(errors.UnavailableError, match="Connection refused"):
            await client.generate("a house")
    assert time.monotonic() - began < 2


async def test_a_new_client_looks_itself_whatever_an_older_one_has_just_found() -> None:
    async with serving(Gateway()) as port:
        pass
    async with client_of(port) as older:
        with pytest.raises(errors.UnavailableError, match="Connection refused"):
            await older.submit("a house")
        async with serving(Gateway(), port), client_of(port) as newer:
            assert (await newer.submit("a house")).id == "j1"


async def test_a_gateway_that_hangs_is_left_at_the_deadline() -> None:
    class Hanging(Gateway):
        async def SubmitJob(self, request, context):  # type: ignore[no-untyped-def]
            await asyncio.sleep(60)

    async with serving(Hanging()) as port, client_of(port, timeout_s=0.3) as client:
        began = time.monotonic()
        with pytest.raises(errors.DeadlineError):
            await client.submit("a house")
    assert time.monotonic() - began < 5


async def test_a_download_goes_on_where_it_broke() -> None:
    class Breaking(Gateway):
        async def DownloadOutput(self, request, context):  # type: ignore[no-untyped-def]
            self.calls.append(request.offset)
            yield generation_service_pb2.DownloadOutputResponse(output=OUTPUT)
            for start in range(request.offset, len(DATA), 1000):
                if start >= 3000 * len(self.calls):
                    raise errors.DrainingError("this gateway is stopping", retry_after_s=0.01)
                piece = worker_pb2.OutputChunk(offset=start, data=DATA[start : start + 1000])
                yield generation_service_pb2.DownloadOutputResponse(chunk=piece)

    servicer = Breaking()
    async with serving(servicer) as port, client_of(port) as client:
        assert (await client.download("j1")).data == DATA
    assert servicer.calls == [0, 3000, 6000, 9000]


@pytest.mark.parametrize(("sent_bytes", "fetched_from"), [(0, [0]), (3000, [3000]), (len(DATA), [])])
async def test_a_file_that_came_with_the_watch_is_fetched_from_where_it_broke(
    sent_bytes: int, fetched_from: list[int]
) -> None:
    class Breaking(Gateway):
        async def WatchJob(self, request, context):  # type: ignore[no-untyped-def]
            assert request.with_output
            yield state_event(job_pb2.JOB_STATE_SUCCEEDED, 1)
            if sent_bytes:
                piece = worker_pb2.OutputChunk(offset=0, data=DATA[:sent_bytes])
                yield generation_service_pb2.WatchJobResponse(chunk=piece)
            raise errors.DrainingError("this gateway is stopping", retry_after_s=0.01)

        async def DownloadOutput(self, request, context):  # type: ignore[no-untyped-def]
            self.calls.append(request.offset)
            yield generation_service_pb2.DownloadOutputResponse(output=OUTPUT)
            piece = worker_pb2.OutputChunk(offset=request.offset, data=DATA[request.offset :])
            yield generation_service_pb2.DownloadOutputResponse(chunk=piece)

    servicer = Breaking()
    async with serving(servicer) as port, client_of(port) as client:
        assert (await client.wait("j1")).data == DATA
    assert servicer.calls == fetched_from


async def test_events_that_come_in_one_message_are_told_one_by_one() -> None:
    class Together(Gateway):
        async def WatchJob(self, request, context):  # type: ignore[no-untyped-def]
            assert request.takes_more
            first = state_event(job_pb2.JOB_STATE_RUNNING, 1).event
            more = [step_event(2).event, step_event(3).event, state_event(job_pb2.JOB_STATE_SUCCEEDED, 4).event]
            yield generation_service_pb2.WatchJobResponse(event=first, more=more)

    async with serving(Together()) as port, client_of(port) as client:
        assert [event.sequence async for event in client.watch("j1")] == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("offset", "data", "size_bytes", "complaint"),
    [
        (0, DATA[:-1] + b"x", len(DATA), "SHA-256"),
        (0, DATA + b"more", len(DATA), "out of place"),
        (10, DATA[10:], len(DATA), "out of place"),
    ],
)
async def test_a_file_that_is_not_what_was_told_is_refused(
    offset: int, data: bytes, size_bytes: int, complaint: str
) -> None:
    class Broken(Gateway):
        async def DownloadOutput(self, request, context):  # type: ignore[no-untyped-def]
            yield generation_service_pb2.DownloadOutputResponse(output=OUTPUT)
            piece = worker_pb2.OutputChunk(offset=offset, data=data)
            yield generation_service_pb2.DownloadOutputResponse(chunk=piece)

    async with serving(Broken()) as port, client_of(port) as client:
        with pytest.raises(errors.DataLossError, match=complaint):
            await client.download("j1")


async def test_leaving_while_submitting_cancels_the_job_that_may_have_been_made() -> None:
    class Slow(Gateway):
        async def SubmitJob(self, request, context):  # type: ignore[no-untyped-def]
            self.calls.append(request.request_id)
            if len(self.calls) == 1:
                await asyncio.sleep(60)
            return generation_service_pb2.SubmitJobResponse(job=job(job_pb2.JOB_STATE_QUEUED))

        async def CancelJob(self, request, context):  # type: ignore[no-untyped-def]
            self.calls.append(request.job_id)
            return generation_service_pb2.CancelJobResponse(job=job(job_pb2.JOB_STATE_CANCELLED))

    servicer = Slow()
    async with serving(servicer) as port, client_of(port) as client:
        task = asyncio.create_task(client.generate("a house"))
        while not servicer.calls:
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    first, second, cancelled = servicer.calls
    assert first == second
    assert cancelled == "j1"


async def test_a_closed_client_says_so() -> None:
    async with serving(Gateway()) as port:
        client = client_of(port)
        await client.get("j1")
        await client.close()
        with pytest.raises(errors.PreconditionError, match="closed"):
            await client.get("j1")
