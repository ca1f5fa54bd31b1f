"""The blocking client, and the controls of the shipped fake gateway."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import AsyncIterator, Iterator

import pytest

from darkroom.client import AsyncClient, Client, Picture, errors
from darkroom.client.fakes import FakeGateway
from darkroom.v1 import job_pb2

PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture
async def gateway() -> AsyncIterator[FakeGateway]:
    async with FakeGateway() as fake:
        yield fake


@pytest.fixture
async def client(gateway: FakeGateway) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(gateway.address) as opened:
        yield opened


@pytest.fixture
def blocking() -> Iterator[tuple[FakeGateway, Client]]:
    with FakeGateway(step_s=0.005) as fake, Client(fake.address) as opened:
        yield fake, opened


async def test_a_stream_ends_with_the_picture(client: AsyncClient) -> None:
    items = [item async for item in client.stream("a red apple", steps=3)]
    assert isinstance(items[-1], Picture)
    assert all(isinstance(item, job_pb2.JobEvent) for item in items[:-1])


async def test_a_failed_job_raises_what_went_wrong(gateway: FakeGateway, client: AsyncClient) -> None:
    gateway.fail_next(errors.OutOfMemoryError("2 GiB are missing", needed_bytes=2**31))
    with pytest.raises(errors.OutOfMemoryError, match="2 GiB are missing") as raised:
        await client.generate("a red apple")
    assert raised.value.facts["needed_bytes"] == str(2**31)


async def test_one_failure_of_many_cancels_the_others(client: AsyncClient, gateway: FakeGateway) -> None:
    gateway.step_s = 0.02
    gateway.fail_next(errors.BrokenOutputError("the picture is black"))
    with pytest.raises(errors.BrokenOutputError):
        await client.generate_many("a red apple", count=3, steps=5)
    states = {job.record.state for job in gateway.jobs.values()}
    assert states <= {job_pb2.JOB_STATE_FAILED, job_pb2.JOB_STATE_CANCELLED, job_pb2.JOB_STATE_SUCCEEDED}


async def test_readiness_is_told_and_can_be_waited_for(client: AsyncClient) -> None:
    assert await client.is_ready()
    await client.wait_until_ready(1.0)
    async with AsyncClient("127.0.0.1:1") as nobody:
        with pytest.raises(TimeoutError):
            await nobody.wait_until_ready(0.3)


async def test_a_refusal_of_the_fake_is_raised_once(client: AsyncClient, gateway: FakeGateway) -> None:
    gateway.refuse_next(errors.QueueFullError("the queue is full", retry_after_s=2.5))
    with pytest.raises(errors.QueueFullError) as refused:
        await client.submit("a red apple")
    assert refused.value.retry_after_s == 2.5
    assert await client.submit("a red apple")


def test_the_blocking_client_makes_the_same_picture(blocking: tuple[FakeGateway, Client]) -> None:
    _, client = blocking
    picture = client.generate("a red apple", seed=7)
    assert [item.seed for item in client.generate_many("a red apple", count=2, seed=7)] == [7, 8]
    items = list(client.stream("a red apple", seed=7))
    assert isinstance(items[-1], Picture)
    assert items[-1].data == picture.data
    job = client.submit("a red apple", seed=7)
    assert [event.sequence for event in client.watch(job.id)]
    assert client.wait(job.id).data == client.download(job.id).data == picture.data
    assert client.get(job.id).id == client.list_jobs(limit=1)[0].id == job.id
    assert client.cancel(job.id).state == job_pb2.JOB_STATE_SUCCEEDED
    assert client.list_models()[0] == client.get_model("emoji")
    assert client.load("emoji").plan.model == "emoji"
    assert client.unload(client.list_workers()[0].status.worker_id)
    assert client.is_ready()
    client.wait_until_ready()
    with pytest.raises(errors.UnsupportedError):
        client.plan("emoji")


def test_leaving_a_blocking_stream_cancels_its_job(blocking: tuple[FakeGateway, Client]) -> None:
    gateway, client = blocking
    for _ in client.stream("a red apple", steps=100):
        break
    (job,) = gateway.jobs.values()
    assert job.record.state == job_pb2.JOB_STATE_CANCELLED


def test_an_interrupt_cancels_a_blocking_call(blocking: tuple[FakeGateway, Client]) -> None:
    gateway, client = blocking

    def interrupt() -> None:
        while not gateway.jobs:
            time.sleep(0.01)
        time.sleep(0.05)
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)  # type: ignore[arg-type]

    # A shell without job control starts what it puts in the background with this signal ignored.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        client.generate("a red apple", steps=100)
    thread.join()
    signal.signal(signal.SIGINT, before)
    (job,) = gateway.jobs.values()
    assert job.record.state == job_pb2.JOB_STATE_CANCELLED


def test_threads_share_a_blocking_client(blocking: tuple[FakeGateway, Client]) -> None:
    _, client = blocking
    pictures: list[Picture] = []
    threads = [
        threading.Thread(target=lambda seed=seed: pictures.append(client.generate("a house", seed=seed)))  # type: ignore[misc]
        for seed in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(picture.seed for picture in pictures) == list(range(8))


def test_a_callback_that_calls_back_is_told_not_to(blocking: tuple[FakeGateway, Client]) -> None:
    _, client = blocking
    with pytest.raises(RuntimeError, match="use AsyncClient"):
        client.generate("a house", on_event=lambda _: print(client.list_jobs()))


def test_a_closed_blocking_client_can_be_closed_again() -> None:
    client = Client("127.0.0.1:1")
    client.close()
    with pytest.raises(errors.UnavailableError):
        client.is_ready()
    client.close()
    client.close()


async def test_a_job_that_is_not_done_in_time_raises(client: AsyncClient, gateway: FakeGateway) -> None:
    gateway.step_s = 0.05
    with pytest.raises(errors.DeadlineError):
        await client.generate("a red apple", steps=40, deadline_s=0.2)
    (job,) = gateway.jobs.values()
    assert job.record.deadline_at.ToMilliseconds() - job.record.created_at.ToMilliseconds() in (199, 200, 201)
    assert (await client.generate("a red apple", steps=1, deadline_s=20)).job.terms.deadline.seconds == 20
