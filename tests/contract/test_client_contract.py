"""What a client may rely on, checked on the shipped fake gateway and on the real one alike.

The real one has a real Redis, and a fake worker and planner, which paint no pictures but keep the same contracts.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from darkroom.client import AsyncClient, Picture, errors
from darkroom.client.fakes import FakeGateway
from darkroom.rpc.channels import open_channel
from darkroom.v1 import generation_pb2, generation_service_pb2, generation_service_pb2_grpc, job_pb2
from services.gateway.config import GatewaySettings
from tests.fakes.catalogue import TINY
from tests.fakes.gateway import serve_gateway
from tests.fakes.planner import FakePlanner, serve_planner
from tests.fakes.worker import FakeWorker, serve_worker

pytestmark = pytest.mark.redis
MODEL = TINY.name


@dataclass(frozen=True)
class Place:
    """A gateway of either kind."""

    address: str
    set_step_s: Callable[[float], None]


@contextlib.asynccontextmanager
async def fake_place() -> AsyncIterator[Place]:
    async with FakeGateway(models=[TINY], step_s=0.01) as gateway:
        yield Place(gateway.address, lambda step_s: setattr(gateway, "step_s", step_s))


@contextlib.asynccontextmanager
async def real_place(folder: Path) -> AsyncIterator[Place]:
    worker = FakeWorker()
    async with serve_worker(worker) as server, serve_planner(FakePlanner()) as planner:
        settings = GatewaySettings(gateway_workers=server.address, gateway_planner=planner, data_dir=folder / "data")
        async with serve_gateway(settings) as gateway:
            yield Place(gateway.stubs.address, lambda step_s: setattr(worker, "step_s", step_s))


@pytest.fixture(params=["fake", "real"])
async def place(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Place]:
    async with fake_place() if request.param == "fake" else real_place(tmp_path) as opened:
        yield opened


@pytest.fixture
async def client(place: Place) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(place.address) as opened:
        yield opened


async def test_a_watch_brings_the_file_and_the_same_events_together_as_alone(place: Place) -> None:
    async with AsyncClient(place.address) as client, open_channel(place.address) as channel:
        picture = await client.generate("a red apple", model=MODEL, seed=7, width=64, height=64, steps=4)
        stub = generation_service_pb2_grpc.GenerationServiceStub(channel)
        job = await client.submit("a red apple", model=MODEL, seed=7, width=64, height=64, steps=4)
        asked = generation_service_pb2.WatchJobRequest(job_id=job.id, takes_more=True, with_output=True)
        told = [answer async for answer in stub.WatchJob(asked, timeout=20)]
        plain = generation_service_pb2.WatchJobRequest(job_id=job.id)
        ended = [answer async for answer in stub.WatchJob(plain, timeout=20)]
    events = [event for answer in told if answer.HasField("event") for event in (answer.event, *answer.more)]
    assert events[-1] == ended[-1].event
    assert [event.sequence for event in events] == sorted({event.sequence for event in events})
    assert b"".join(answer.chunk.data for answer in told) == picture.data
    assert not any(answer.HasField("chunk") for answer in ended)


async def test_one_call_makes_a_picture_and_tells_every_step(client: AsyncClient) -> None:
    seen: list[job_pb2.JobEvent] = []
    picture = await client.generate(
        "a red apple", model=MODEL, seed=7, width=64, height=96, steps=8, on_event=seen.append
    )
    assert (picture.format, picture.width, picture.height, picture.seed) == ("png", 64, 96, 7)
    assert len(picture.data) == picture.output.size_bytes
    sequences = [event.sequence for event in seen]
    assert sequences == sorted(set(sequences))
    assert seen[0].HasField("job")
    assert seen[-1].job.state == job_pb2.JOB_STATE_SUCCEEDED
    steps = [event.progress.completed for event in seen if event.progress.phase == generation_pb2.PHASE_DENOISING]
    assert steps == sorted(steps)
    assert steps[-1] == 8


async def test_the_same_request_makes_the_same_bytes_and_another_one_others(client: AsyncClient) -> None:
    first = await client.generate("a red apple", model=MODEL, seed=7)
    assert (await client.generate("a red apple", model=MODEL, seed=7)).data == first.data
    assert (await client.generate("a red apple", model=MODEL, seed=8)).data != first.data
    assert (await client.generate("a house", model=MODEL, seed=7)).data != first.data


async def test_a_seed_that_nobody_gave_is_drawn_and_told(client: AsyncClient) -> None:
    picture = await client.generate("a red apple", model=MODEL)
    assert picture.seed < 2**53
    assert (await client.generate("a red apple", model=MODEL, seed=picture.seed)).data == picture.data


async def test_many_pictures_have_seeds_that_follow_each_other(client: AsyncClient) -> None:
    first = 2**64 - 3
    pictures = await client.generate_many("a red apple", model=MODEL, count=3, seed=first)
    assert [picture.seed for picture in pictures] == [first, first + 1, first + 2]
    assert len({picture.data for picture in pictures}) == 3


async def test_defaults_are_filled_in(client: AsyncClient) -> None:
    job = await client.submit("a red apple", model=TINY.aliases[0])
    assert job.request.model == MODEL
    assert job.request.width == TINY.defaults.width
    assert job.request.steps == TINY.defaults.steps
    assert job.request.negative_prompt == TINY.defaults.negative_prompt
    assert job.request.format == generation_pb2.OUTPUT_FORMAT_PNG
    assert job.request.HasField("seed")


async def test_a_job_can_be_submitted_watched_and_fetched_later(client: AsyncClient) -> None:
    job = await client.submit("a red apple", model=MODEL, seed=7)
    states = [event.job.state async for event in client.watch(job.id) if event.HasField("job")]
    assert states[-1] == job_pb2.JOB_STATE_SUCCEEDED
    again = [event async for event in client.watch(job.id)]
    assert [event.job.state for event in again] == [job_pb2.JOB_STATE_SUCCEEDED]
    picture = await client.download(job.id)
    assert picture.data == (await client.wait(job.id)).data
    assert (await client.get(job.id)).output.sha256 == picture.output.sha256


async def test_a_watch_goes_on_after_a_cursor(client: AsyncClient) -> None:
    job = await client.submit("a red apple", model=MODEL, steps=10)
    first: list[int] = []
    watch = client.watch(job.id)
    async for event in watch:
        first.append(event.sequence)
        if event.progress.completed >= 2:
            break
    await watch.aclose()
    rest = [event.sequence async for event in client.watch(job.id, after_sequence=first[-1])]
    assert rest[0] >= first[-1]
    assert rest == sorted(set(rest))


async def test_repeating_a_request_id_returns_the_first_job(client: AsyncClient) -> None:
    request_id = str(uuid.uuid4())
    job = await client.submit("a red apple", model=MODEL, request_id=request_id)
    assert (await client.submit("a red apple", model=MODEL, request_id=request_id)).id == job.id
    with pytest.raises(errors.RequestIdReusedError):
        await client.submit("a house", model=MODEL, request_id=request_id)


async def test_jobs_are_listed_newest_first_across_pages(client: AsyncClient) -> None:
    jobs = await client.submit_many("a red apple", model=MODEL, count=120, steps=1)
    listed = await client.list_jobs(limit=110)
    assert [job.id for job in listed] == [job.id for job in reversed(jobs)][:110]
    assert await client.list_jobs(states=[job_pb2.JOB_STATE_FAILED]) == []


async def test_leaving_a_stream_cancels_its_job(place: Place, client: AsyncClient) -> None:
    place.set_step_s(0.1)
    stream = client.stream("a red apple", model=MODEL, steps=50)
    await anext(stream)
    await stream.aclose()
    (job,) = await client.list_jobs()
    with pytest.raises(errors.CancelledError):
        await client.wait(job.id)
    assert (await client.get(job.id)).state == job_pb2.JOB_STATE_CANCELLED


async def test_cancelling_the_call_cancels_its_jobs(place: Place, client: AsyncClient) -> None:
    place.set_step_s(0.1)
    task = asyncio.create_task(client.generate_many("a red apple", model=MODEL, count=3, steps=50))
    while len(await client.list_jobs()) < 3:
        await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    for job in await client.list_jobs():
        with pytest.raises(errors.CancelledError):
            await client.wait(job.id)


async def test_leaving_a_watch_does_not_touch_the_job(client: AsyncClient) -> None:
    job = await client.submit("a red apple", model=MODEL)
    watch = client.watch(job.id)
    await anext(watch)
    await watch.aclose()
    assert isinstance(await client.wait(job.id), Picture)


async def test_a_cancelled_job_tells_so_and_cancelling_again_changes_nothing(place: Place, client: AsyncClient) -> None:
    place.set_step_s(0.1)
    job = await client.submit("a red apple", model=MODEL, steps=50)
    await client.cancel(job.id)
    with pytest.raises(errors.CancelledError) as raised:
        await client.wait(job.id)
    assert raised.value.facts["job_id"] == job.id
    assert (await client.cancel(job.id)).state == job_pb2.JOB_STATE_CANCELLED
    with pytest.raises(errors.CancelledError):
        await client.download(job.id)


async def test_a_job_that_has_not_ended_has_no_file(place: Place, client: AsyncClient) -> None:
    place.set_step_s(0.1)
    job = await client.submit("a red apple", model=MODEL, steps=50)
    with pytest.raises(errors.NoOutputError):
        await client.download(job.id)
    await client.cancel(job.id)


@pytest.mark.parametrize(
    ("fields", "violation"),
    [
        ({"width": 17}, "request.width"),
        ({"height": 4096}, "request.height"),
        ({"width": -16}, "request.width"),
        ({"steps": 0}, "request.steps"),
        ({"steps": 100_000}, "request.steps"),
        ({"guidance": -1.0}, "request.guidance"),
        ({"guidance": float("nan")}, "request.guidance"),
        ({"prompt": ""}, "request.prompt"),
        ({"prompt": "x" * 501}, "request.prompt"),
    ],
    ids=str,
)
async def test_a_wrong_field_is_named_and_nothing_is_queued(
    client: AsyncClient, fields: dict[str, object], violation: str
) -> None:
    given = dict(fields)
    with pytest.raises(errors.InvalidRequestError) as refused:
        await client.generate(str(given.pop("prompt", "a red apple")), model=MODEL, **given)  # type: ignore[arg-type]
    assert set(refused.value.violations) == {violation}
    assert await client.list_jobs() == []


async def test_every_wrong_field_is_named_at_once(client: AsyncClient) -> None:
    with pytest.raises(errors.InvalidRequestError) as refused:
        await client.submit("", model=MODEL, width=17, steps=0)
    assert set(refused.value.violations) == {"request.prompt", "request.width", "request.steps"}


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
    models = await client.list_models()
    assert await client.get_model(TINY.aliases[0]) in models
    (worker,) = await client.list_workers()
    assert worker.is_reachable
    loaded: list[str] = []
    await client.load(MODEL, on_event=lambda worker_id, _: loaded.append(worker_id))
    assert set(loaded) == {worker.status.worker_id}
    assert (await client.generate("a red apple", model=MODEL)).data
    assert not (await client.unload(worker.status.worker_id)).HasField("loaded")
