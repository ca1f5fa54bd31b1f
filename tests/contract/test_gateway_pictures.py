"""Pictures that requests bring, on their way through a gateway: stored before OK, given to whatever worker runs the
job, kept while a job may need them, and never a byte of them in Redis."""

from __future__ import annotations

import hashlib
import os
import time
import uuid
from pathlib import Path

import grpc
import pytest

from darkroom.storage import open_store
from darkroom.v1 import generation_pb2, generation_service_pb2, job_pb2
from services.gateway.inputs import GRACE_AGE_S, Inputs
from tests.contract.house import House, T, code_of, finish, get, settings_for, until_state
from tests.engines.snapshots import file_of_image, reference, scene
from tests.fakes.gateway import Stubs, serve_gateway, start_gateway
from tests.fakes.planner import FakePlanner, serve_planner
from tests.fakes.redis import open_jobs, serve_redis
from tests.fakes.worker import FakeWorker, serve_worker

pytestmark = pytest.mark.redis
ONE, OTHER = file_of_image(scene()), file_of_image(scene(seed=1), "JPEG", 6)
SUCCEEDED, RUNNING = job_pb2.JOB_STATE_SUCCEEDED, job_pb2.JOB_STATE_RUNNING


def asked(*files: bytes, prompt: str = "make it blue", request_id: str = "", **fields: object) -> object:
    request = generation_pb2.GenerationRequest(model="editor", prompt=prompt, **fields)  # type: ignore[arg-type]
    request.images.extend(reference(file) for file in files)
    return generation_service_pb2.SubmitJobRequest(request=request, request_id=request_id)


async def submit(stubs: Stubs, *files: bytes, **fields: object) -> job_pb2.Job:
    return (await stubs.jobs.SubmitJob(asked(*files, **fields), timeout=T)).job  # type: ignore[arg-type]


def stored(house: House) -> dict[str, Path]:
    """Paths of stored pictures, by name."""
    folder = house.gateway.settings.data_dir / "outputs" / "inputs"
    return {path.name: path for path in folder.glob("*")}


def named(*files: bytes) -> set[str]:
    return {hashlib.sha256(file).hexdigest() for file in files}


async def test_a_workers_run_has_the_files_and_the_job_their_names(house: House) -> None:
    job = await submit(house.stubs, ONE, OTHER)
    assert stored(house).keys() == named(ONE, OTHER)
    assert [image.data for image in job.request.images] == [b"", b""]
    told = [(image.sha256, image.width, image.height, image.content_type) for image in job.request.images]
    assert told == [
        (hashlib.sha256(ONE).hexdigest(), 96, 64, "image/png"),
        (hashlib.sha256(OTHER).hexdigest(), 64, 96, "image/jpeg"),
    ]
    assert (job.request.width, job.request.height) == (160, 112)
    done = await finish(house.stubs, job.id)
    assert done.state == SUCCEEDED, done.error
    assert house.worker.pictures == {job.id: [[ONE, OTHER]]}
    assert done.request == job.request


async def test_pictures_are_refused_by_field_before_anything_is_stored(house: House) -> None:
    for files, field in (((ONE, b"GIF89a"), "request.images[1].data"), ((ONE, ONE, ONE), "request.images")):
        with pytest.raises(grpc.aio.AioRpcError, match=field.replace("[", r"\[")) as refused:
            await submit(house.stubs, *files)
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    large = file_of_image(scene(), "JPEG") + bytes(7 * 2**20)
    with pytest.raises(grpc.aio.AioRpcError, match=r"14,6.* bytes together; .* at most 12,582,912"):
        await submit(house.stubs, large, large)
    assert await code_of(house.stubs.jobs.SubmitJob(asked(ONE, bytes(17 * 2**20)), timeout=T)) == (
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        "RESOURCE_EXHAUSTED",
    )
    assert not stored(house)


async def test_a_repeated_submit_is_the_same_job_and_another_picture_is_another_request(house: House) -> None:
    request_id = str(uuid.uuid4())
    first, again = [await submit(house.stubs, ONE, request_id=request_id) for _ in range(2)]
    assert first.id == again.id
    other = house.stubs.jobs.SubmitJob(asked(OTHER, request_id=request_id), timeout=T)
    assert await code_of(other) == (grpc.StatusCode.ALREADY_EXISTS, "REQUEST_ID_REUSED")


async def test_more_pictures_than_a_load_was_planned_for_are_planned_before_they_run(house: House) -> None:
    counts = []
    for files in ((), (ONE,), (ONE,), (ONE, OTHER), (ONE,), ()):
        before = len(house.planner.questions)
        await finish(house.stubs, (await submit(house.stubs, *files, width=128, height=128)).id)
        counts.append([question.workload.reference_images for question in house.planner.questions[before:]])
    assert counts == [[0], [1], [], [2], [], []]


async def test_what_a_dead_job_brought_is_there_when_it_is_driven_again(house: House) -> None:
    dead = await finish(house.stubs, (await submit(house.stubs, ONE, prompt="dies")).id)
    assert dead.error.reason == "POISON"
    request = generation_service_pb2.RedriveJobRequest(job_id=dead.id)
    again = (await house.stubs.jobs.RedriveJob(request, timeout=T)).job
    await finish(house.stubs, again.id)
    assert house.worker.pictures[again.id] == [[ONE], [ONE]]


async def test_a_picture_that_is_gone_or_changed_fails_its_job_with_the_reason_before_a_load(house: House) -> None:
    house.worker.step_s = 0.1
    running = await submit(house.stubs, steps=8)
    await until_state(house.stubs, running.id, RUNNING)
    jobs = [await submit(house.stubs, file, steps=1) for file in (ONE, OTHER)]
    for sha256, path in stored(house).items():
        path.write_bytes(b"another file") if sha256 in named(ONE) else path.unlink()
    reasons = [(await finish(house.stubs, job.id)).error for job in jobs]
    assert [error.reason for error in reasons] == ["DATA_LOSS"] * 2
    assert ["was changed" in reasons[0].message, "no longer stored" in reasons[1].message] == [True, True]
    assert len(house.worker.loads) == 1


async def test_another_worker_is_given_the_picture_when_the_first_is_lost(tmp_path: Path) -> None:
    first, second = FakeWorker("first", step_s=0.1), FakeWorker("second")
    async with serve_worker(first) as one, serve_worker(second) as two, serve_planner(FakePlanner()) as planner:
        second.is_draining = True
        settings = settings_for(tmp_path, f"{one.address},{two.address}", planner)
        async with serve_gateway(settings) as gateway:
            job = await submit(gateway.stubs, ONE, steps=30)
            await until_state(gateway.stubs, job.id, RUNNING)
            while not first.steps:
                await until_state(gateway.stubs, job.id, RUNNING)
            second.is_draining = False
            await one.cut()
            done = await finish(gateway.stubs, job.id)
            assert (done.state, done.worker_id, done.attempts) == (SUCCEEDED, "second", 2)
            assert first.pictures == second.pictures == {job.id: [[ONE]]}


async def test_a_killed_gateways_jobs_find_their_pictures_and_a_run_that_goes_on_is_joined(tmp_path: Path) -> None:
    worker = FakeWorker(step_s=0.1)
    async with serve_redis(tmp_path) as redis, serve_worker(worker) as server, serve_planner(FakePlanner()) as planner:
        settings = {
            "DARKROOM_GATEWAY_WORKERS": server.address,
            "DARKROOM_GATEWAY_PLANNER": planner,
            "DARKROOM_REDIS_URL": redis.url,
            "DARKROOM_DATA_DIR": str(tmp_path / "data"),
            "DARKROOM_GATEWAY_LEASE_S": "1.0",
        }
        gateway = await start_gateway(settings, tmp_path / "log")
        try:
            running = await submit(gateway.stubs, ONE, steps=16)
            await until_state(gateway.stubs, running.id, RUNNING)
            while not worker.steps:
                await until_state(gateway.stubs, running.id, RUNNING)
            waiting = await submit(gateway.stubs, OTHER, steps=2)
            gateway.kill()
        finally:
            await gateway.close()
        gateway = await start_gateway(settings, tmp_path / "log")
        try:
            ends = [await finish(gateway.stubs, job.id) for job in (running, waiting)]
        finally:
            await gateway.close()
    assert [(job.state, job.attempts) for job in ends] == [(SUCCEEDED, 1)] * 2, ends
    assert worker.pictures == {running.id: [[ONE]], waiting.id: [[OTHER]]}
    assert worker.steps[running.id] == 16


async def test_a_sweep_takes_what_no_live_or_dead_job_names_once_it_is_old(tmp_path: Path) -> None:
    worker = FakeWorker()
    async with (
        serve_redis(tmp_path) as redis,
        serve_worker(worker) as server,
        serve_planner(FakePlanner()) as planner,
        serve_gateway(settings_for(tmp_path, server.address, planner, redis_url=redis.url)) as gateway,
        open_jobs(redis.url) as (jobs, client),
    ):
        files = [file_of_image(scene(seed=seed)) for seed in range(4)]
        done, dead, waiting, anew = files
        await finish(gateway.stubs, (await submit(gateway.stubs, done)).id)
        await finish(gateway.stubs, (await submit(gateway.stubs, anew)).id)
        await finish(gateway.stubs, (await submit(gateway.stubs, dead, prompt="dies")).id)
        worker.step_s = 0.5
        running = await submit(gateway.stubs, waiting, steps=50)
        assert await jobs.named_inputs() == named(dead, waiting)
        folder = tmp_path / "data" / "outputs" / "inputs"
        inputs = Inputs(open_store(tmp_path / "data" / "outputs"))
        assert await inputs.sweep(jobs.named_inputs) == 0, "young files may be about to be named"
        long_ago = time.time() - 2 * GRACE_AGE_S
        for path in folder.iterdir():
            os.utime(path, (long_ago, long_ago))

        async def find_named() -> set[str]:
            names = await jobs.named_inputs()
            # A submit comes between the look at the jobs and the deletion.
            await inputs.keep([anew])
            return names

        assert await inputs.sweep(find_named) == 1
        assert {path.name for path in folder.iterdir()} == named(dead, waiting, anew)
        values = [await client.hget(f"darkroom:job:{running.id}", "request")]
        assert all(waiting not in value and len(value) < 500 for value in values)
        await gateway.stubs.jobs.CancelJob(generation_service_pb2.CancelJobRequest(job_id=running.id), timeout=T)
        assert (await get(gateway.stubs, running.id)).request.images[0].sha256 in named(waiting)
