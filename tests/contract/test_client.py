"""Both clients from connect to picture, against the shipped fake gateway.

What is tested here holds for the real gateway too: tests/integration drives the same client through the whole stack.
"""

from __future__ import annotations

import asyncio
import signal
import threading
import time
import uuid
from collections.abc import AsyncIterator, Iterator

import pytest

from darkroom.client import AsyncClient, Client, Picture, errors
from darkroom.client.fakes import FakeGateway
from darkroom.v1 import generation_pb2, job_pb2, worker_pb2

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


async def test_one_call_makes_a_picture(client: AsyncClient, gateway: FakeGateway) -> None:
    gateway.step_s = 0.01
    seen: list[job_pb2.JobEvent] = []
    picture = await client.generate("a red apple", seed=7, width=64, height=96, steps=5, on_event=seen.append)
    assert picture.data.startswith(PNG)
    assert (picture.format, picture.width, picture.height, picture.seed) == ("png", 64, 96, 7)
    assert picture.engagements
    assert [event.sequence for event in seen] == sorted({event.sequence for event in seen})
    steps = [event.progress.completed for event in seen if event.progress.phase == generation_pb2.PHASE_DENOISING]
    assert steps[-1] == 5
    assert seen[-1].job.state == job_pb2.JOB_STATE_SUCCEEDED


async def test_the_same_seed_makes_the_same_bytes_and_another_prompt_others(client: AsyncClient) -> None:
    first = await client.generate("a red apple", seed=7)
    assert (await client.generate("a red apple", seed=7)).data == first.data
    assert (await client.generate("a red apple", seed=8)).data != first.data
    assert (await client.generate("a house", seed=7)).data != first.data


async def test_a_seed_that_nobody_gave_is_told_and_makes_the_picture_again(client: AsyncClient) -> None:
    picture = await client.generate("a red apple")
    assert (await client.generate("a red apple", seed=picture.seed)).data == picture.data


async def test_many_pictures_have_seeds_that_follow_each_other(client: AsyncClient) -> None:
    pictures = await client.generate_many("a red apple", count=4, seed=2**64 - 4)
    assert [picture.seed for picture in pictures] == [2**64 - 4 + index for index in range(4)]
    assert len({picture.data for picture in pictures}) == 4


async def test_a_stream_ends_with_the_picture(client: AsyncClient) -> None:
    items = [item async for item in client.stream("a red apple", steps=3)]
    assert isinstance(items[-1], Picture)
    assert all(isinstance(item, job_pb2.JobEvent) for item in items[:-1])


async def test_a_job_can_be_submitted_watched_and_fetched_later(client: AsyncClient) -> None:
    job = await client.submit("a red apple", seed=7)
    states = [event.job.state async for event in client.watch(job.id) if event.HasField("job")]
    assert states[-1] == job_pb2.JOB_STATE_SUCCEEDED
    picture = await client.download(job.id)
    assert picture.data == (await client.wait(job.id)).data
    assert (await client.get(job.id)).output.sha256 == picture.output.sha256


async def test_repeating_a_request_id_returns_the_first_job(client: AsyncClient) -> None:
    request_id = str(uuid.uuid4())
    job = await client.submit("a red apple", request_id=request_id)
    assert (await client.submit("a red apple", request_id=request_id)).id == job.id
    with pytest.raises(errors.RequestIdReusedError):
        await client.submit("a house", request_id=request_id)


async def test_jobs_are_listed_newest_first_across_pages(client: AsyncClient) -> None:
    jobs = await client.submit_many("a red apple", count=120)
    listed = await client.list_jobs(limit=110)
    assert [job.id for job in listed] == [job.id for job in reversed(jobs)][:110]
    assert await client.list_jobs(states=[job_pb2.JOB_STATE_FAILED]) == []


async def test_leaving_a_stream_cancels_its_job() -> None:
    async with FakeGateway(step_s=0.02) as gateway, AsyncClient(gateway.address) as client:
        stream = client.stream("a red apple")
        async for _ in stream:
            break
        await stream.aclose()
        (job,) = await client.list_jobs()
        assert job.state == job_pb2.JOB_STATE_CANCELLED


async def test_cancelling_the_call_cancels_its_jobs() -> None:
    async with FakeGateway(step_s=0.02) as gateway, AsyncClient(gateway.address) as client:
        task = asyncio.create_task(client.generate_many("a red apple", count=3))
        while len(gateway.jobs) < 3:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert {job.state for job in await client.list_jobs()} == {job_pb2.JOB_STATE_CANCELLED}


async def test_leaving_a_watch_does_not_touch_the_job() -> None:
    async with FakeGateway(step_s=0.005) as gateway, AsyncClient(gateway.address) as client:
        job = await client.submit("a red apple")
        watch = client.watch(job.id)
        await anext(watch)
        await watch.aclose()
        assert (await client.wait(job.id)).data.startswith(PNG)


async def test_a_cancelled_job_tells_so_and_cancelling_again_changes_nothing() -> None:
    async with FakeGateway(step_s=0.05) as gateway, AsyncClient(gateway.address) as client:
        job = await client.submit("a red apple")
        assert (await client.cancel(job.id)).state == job_pb2.JOB_STATE_CANCELLED
        assert (await client.cancel(job.id)).state == job_pb2.JOB_STATE_CANCELLED
        with pytest.raises(errors.CancelledError) as raised:
            await client.wait(job.id)
        assert raised.value.facts["job_id"] == job.id
        with pytest.raises(errors.CancelledError):
            await client.download(job.id)


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


@pytest.mark.parametrize(
    ("fields", "violation"),
    [
        ({"width": 17}, "request.width"),
        ({"height": 4096}, "request.height"),
        ({"steps": 0}, "request.steps"),
        ({"steps": 100_000}, "request.steps"),
        ({"guidance": -1.0}, "request.guidance"),
        ({"prompt": ""}, "request.prompt"),
    ],
)
async def test_a_wrong_field_is_named_and_nothing_is_queued(
    client: AsyncClient, fields: dict[str, object], violation: str
) -> None:
    prompt = str(fields.pop("prompt", "a red apple"))
    with pytest.raises(errors.InvalidRequestError) as refused:
        await client.generate(prompt, **fields)  # type: ignore[arg-type]
    assert set(refused.value.violations) == {violation}
    assert await client.list_jobs() == []


async def test_what_is_unknown_is_told(client: AsyncClient) -> None:
    with pytest.raises(errors.UnknownModelError):
        await client.generate("a red apple", model="nope")
    with pytest.raises(errors.UnknownModelError):
        await client.get_model("nope")
    for call in (client.get, client.cancel, client.download):
        with pytest.raises(errors.UnknownJobError):
            await call("nope")
    with pytest.raises(errors.UnknownJobError):
        await anext(client.watch("nope"))


async def test_models_and_workers_are_told(client: AsyncClient) -> None:
    (model,) = await client.list_models()
    assert await client.get_model(model.aliases[0]) == model
    (worker,) = await client.list_workers()
    assert worker.is_reachable
    loaded: list[tuple[str, worker_pb2.LoadEvent]] = []
    assert (await client.load("emoji", on_event=lambda *event: loaded.append(event))).plan.model == "emoji"
    assert [worker_id for worker_id, _ in loaded] == [worker.status.worker_id]
    assert (await client.unload(worker.status.worker_id)).state == worker_pb2.WORKER_STATE_READY


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

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        client.generate("a red apple", steps=100)
    thread.join()
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
