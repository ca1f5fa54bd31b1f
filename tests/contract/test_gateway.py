"""A gateway with a real Redis, a fake worker and a fake planner, driven by generated stubs."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from darkroom.rpc.status import from_rpc_error
from darkroom.v1 import (
    cluster_service_pb2,
    device_pb2,
    generation_pb2,
    generation_service_pb2,
    job_pb2,
    model_service_pb2,
)
from services.gateway.config import GatewaySettings
from tests.fakes.gateway import Gateway, Stubs, serve_gateway
from tests.fakes.planner import FakePlanner, serve_planner
from tests.fakes.worker import FakeWorker, WorkerServer, picture, serve_worker

pytestmark = pytest.mark.redis
T = 20.0


class House:
    """Everything that a test may touch."""

    def __init__(self, gateway: Gateway, worker: FakeWorker, server: WorkerServer, planner: FakePlanner) -> None:
        self.gateway = gateway
        self.stubs = gateway.stubs
        self.worker = worker
        self.server = server
        self.planner = planner


def settings_for(folder: Path, worker: str, planner: str, **more: object) -> GatewaySettings:
    values = {
        "gateway_workers": worker,
        "gateway_planner": planner,
        "data_dir": folder / "data",
        "gateway_lease_s": 1.0,
        "gateway_worker_lost_s": 1.0,
        "gateway_hang_slack_s": 0.5,
        "grace_s": 4.0,
    }
    return GatewaySettings(**{**values, **more})  # type: ignore[arg-type]


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    worker, planner = FakeWorker(), FakePlanner()
    async with (
        serve_worker(worker) as server,
        serve_planner(planner) as address,
        serve_gateway(settings_for(tmp_path, server.address, address)) as gateway,
    ):
        yield House(gateway, worker, server, planner)


def a_request(prompt: str = "a red apple", **fields: object) -> generation_pb2.GenerationRequest:
    return generation_pb2.GenerationRequest(model="tiny", prompt=prompt, **fields)  # type: ignore[arg-type]


async def submit(stubs: Stubs, prompt: str = "a red apple", request_id: str = "", **fields: object) -> job_pb2.Job:
    message = generation_service_pb2.SubmitJobRequest(request=a_request(prompt, **fields), request_id=request_id)
    return (await stubs.jobs.SubmitJob(message, timeout=T)).job


async def watch(stubs: Stubs, job_id: str, after: int = 0) -> list[job_pb2.JobEvent]:
    call = stubs.jobs.WatchJob(generation_service_pb2.WatchJobRequest(job_id=job_id, after_sequence=after), timeout=T)
    return [answer.event async for answer in call]


async def finish(stubs: Stubs, job_id: str) -> job_pb2.Job:
    return (await watch(stubs, job_id))[-1].job


async def get(stubs: Stubs, job_id: str) -> job_pb2.Job:
    return (await stubs.jobs.GetJob(generation_service_pb2.GetJobRequest(job_id=job_id), timeout=T)).job


async def until_state(stubs: Stubs, job_id: str, state: int) -> job_pb2.Job:
    async with asyncio.timeout(T):
        while True:
            job = await get(stubs, job_id)
            if job.state == state:
                return job
            await asyncio.sleep(0.01)


async def download(stubs: Stubs, job_id: str, offset: int = 0) -> tuple[generation_pb2.Output, bytes]:
    request = generation_service_pb2.DownloadOutputRequest(job_id=job_id, offset=offset)
    output, data = None, b""
    async for answer in stubs.jobs.DownloadOutput(request, timeout=T):
        if answer.HasField("output"):
            output = answer.output
        else:
            assert answer.chunk.offset == offset + len(data)
            data += answer.chunk.data
    assert output is not None
    return output, data


def check_truth(events: list[job_pb2.JobEvent]) -> None:
    """State first, sequences rising, progress never back within an attempt, terminal state last and once."""
    assert events[0].HasField("job")
    sequences = [event.sequence for event in events]
    assert sequences == sorted(set(sequences))
    terminal = [event for event in events if event.HasField("job") and event.job.state >= job_pb2.JOB_STATE_SUCCEEDED]
    assert terminal == events[-1:]
    reached = 0.0
    for event in events:
        if event.HasField("job"):
            reached = 0.0
        else:
            assert reached <= event.progress.fraction <= 1
            assert event.progress.total == 0 or event.progress.completed <= event.progress.total
            reached = event.progress.fraction


async def test_a_submitted_job_succeeds_and_its_file_is_what_the_worker_made(house: House) -> None:
    job = await submit(house.stubs, seed=0)
    assert job.state == job_pb2.JOB_STATE_QUEUED
    assert (job.request.width, job.request.steps, job.request.seed) == (128, 4, 0)
    events = await watch(house.stubs, job.id)
    check_truth(events)
    done = events[-1].job
    assert done.state == job_pb2.JOB_STATE_SUCCEEDED, done.error
    assert done.attempts == 1
    assert done.worker_id == "fake-0"
    output, data = await download(house.stubs, job.id)
    assert data == picture(done.request, 3000)
    assert output == done.output
    assert house.worker.acknowledged == [job.id]


async def test_generate_tells_the_id_first_then_progress_then_the_file(house: House) -> None:
    house.worker.file_bytes = 600_000
    answers = [
        answer
        async for answer in house.stubs.jobs.Generate(
            generation_service_pb2.GenerateRequest(request=a_request(steps=6)), timeout=T
        )
    ]
    assert answers[0].event.job.id
    events = [answer.event for answer in answers if answer.HasField("event")]
    check_truth(events)
    steps = [event.progress.completed for event in events if event.progress.phase == generation_pb2.PHASE_DENOISING]
    assert steps == [1, 2, 3, 4, 5, 6]
    chunks = [answer.chunk for answer in answers if answer.HasField("chunk")]
    assert [len(chunk.data) for chunk in chunks] == [262144, 262144, 75712]
    assert b"".join(chunk.data for chunk in chunks) == picture(events[-1].job.request, 600_000)


async def test_the_second_job_is_neither_planned_nor_loaded_again(house: House) -> None:
    await finish(house.stubs, (await submit(house.stubs)).id)
    await finish(house.stubs, (await submit(house.stubs)).id)
    await finish(house.stubs, (await submit(house.stubs, width=64, height=64)).id)
    assert (len(house.planner.questions), len(house.worker.loads)) == (1, 1)


async def test_a_larger_picture_is_planned_and_loads_nothing_where_the_plan_is_the_same(house: House) -> None:
    await finish(house.stubs, (await submit(house.stubs)).id)
    await finish(house.stubs, (await submit(house.stubs, width=256, height=256)).id)
    assert (len(house.planner.questions), len(house.worker.loads)) == (2, 1)


async def test_other_preferences_load_another_plan(house: House) -> None:
    await finish(house.stubs, (await submit(house.stubs)).id)
    request = a_request()
    request.preferences.scheme = device_pb2.SCHEME_INT8
    message = generation_service_pb2.SubmitJobRequest(request=request)
    job = (await house.stubs.jobs.SubmitJob(message, timeout=T)).job
    assert (await finish(house.stubs, job.id)).state == job_pb2.JOB_STATE_SUCCEEDED
    assert len(house.worker.loads) == 2


async def test_a_replan_loads_the_new_plan_under_the_same_token(house: House) -> None:
    house.worker.wants_replan = True
    assert (await finish(house.stubs, (await submit(house.stubs)).id)).state == job_pb2.JOB_STATE_SUCCEEDED
    first, second = house.worker.loads
    assert (first.replanned, second.replanned) == (False, True)
    assert first.token == second.token


async def test_jobs_in_a_row_never_wait_for_a_poll(house: House) -> None:
    """Statuses that were read while a job ran must not keep the next one waiting; the slow look is every 2 s."""
    await finish(house.stubs, (await submit(house.stubs)).id)
    waits = []
    for steps in (1, 7, 2, 20, 3, 25, 1, 12, 30, 2, 2, 40):
        done = await finish(house.stubs, (await submit(house.stubs, steps=steps)).id)
        waits.append(done.started_at.ToNanoseconds() - done.created_at.ToNanoseconds())
    assert max(waits) < 0.9e9


async def test_an_absent_seed_is_drawn_and_told(house: House) -> None:
    seeds = {(await submit(house.stubs)).request.seed for _ in range(3)}
    assert len(seeds) == 3
    assert max(seeds) < 2**53


async def test_a_watch_resumes_after_its_cursor(house: House) -> None:
    house.worker.step_s = 0.05
    job = await submit(house.stubs, steps=10)
    request = generation_service_pb2.WatchJobRequest(job_id=job.id)
    seen: list[job_pb2.JobEvent] = []
    call = house.stubs.jobs.WatchJob(request, timeout=T)
    async for answer in call:
        seen.append(answer.event)
        if answer.event.progress.completed == 4:
            break
    call.cancel()
    rest = await watch(house.stubs, job.id, after=seen[-1].sequence)
    assert rest[0].job.state == job_pb2.JOB_STATE_RUNNING
    assert rest[0].sequence == seen[-1].sequence
    assert rest[0].job.progress.completed == 4
    assert [event.sequence for event in rest[1:-1]] == list(range(rest[0].sequence + 1, rest[-1].sequence))
    check_truth(rest)


async def test_watching_an_ended_job_tells_its_end_and_nothing_else(house: House) -> None:
    job = await finish(house.stubs, (await submit(house.stubs)).id)
    for after in (0, 3, 10_000):
        events = await watch(house.stubs, job.id, after)
        assert [event.job.state for event in events] == [job_pb2.JOB_STATE_SUCCEEDED]


async def test_a_download_resumes_at_any_offset(house: House) -> None:
    house.worker.file_bytes = 300_000
    job = await finish(house.stubs, (await submit(house.stubs)).id)
    whole = picture(job.request, 300_000)
    for offset in (0, 1, 262_144, 299_999, 300_000):
        assert (await download(house.stubs, job.id, offset))[1] == whole[offset:]
    for offset in (300_001, -1):
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await download(house.stubs, job.id, offset)
        assert failure.value.code() is grpc.StatusCode.OUT_OF_RANGE


async def test_a_queued_job_is_cancelled_at_once(house: House) -> None:
    house.worker.step_s = 0.1
    running = await submit(house.stubs)
    await until_state(house.stubs, running.id, job_pb2.JOB_STATE_RUNNING)
    waiting = await submit(house.stubs)
    for _ in range(2):
        request = generation_service_pb2.CancelJobRequest(job_id=waiting.id)
        job = (await house.stubs.jobs.CancelJob(request, timeout=T)).job
        assert job.state == job_pb2.JOB_STATE_CANCELLED
    assert (await finish(house.stubs, running.id)).state == job_pb2.JOB_STATE_SUCCEEDED
    assert house.worker.starts[waiting.id] == 0


async def test_a_running_job_stops_at_its_next_step(house: House) -> None:
    house.worker.step_s = 0.1
    job = await submit(house.stubs, steps=50)
    await until_state(house.stubs, job.id, job_pb2.JOB_STATE_RUNNING)
    await asyncio.sleep(0.3)
    request = generation_service_pb2.CancelJobRequest(job_id=job.id)
    for _ in range(2):
        await house.stubs.jobs.CancelJob(request, timeout=T)
    async with asyncio.timeout(1.0):
        done = await finish(house.stubs, job.id)
    assert (done.state, done.error.reason) == (job_pb2.JOB_STATE_CANCELLED, "CANCELLED")
    assert house.worker.steps[job.id] < 10
    assert (await finish(house.stubs, (await submit(house.stubs)).id)).state == job_pb2.JOB_STATE_SUCCEEDED


async def test_a_job_whose_model_is_loading_is_cancelled_at_once(house: House) -> None:
    house.worker.load_s = 1.5
    job = await submit(house.stubs)
    await until_state(house.stubs, job.id, job_pb2.JOB_STATE_RUNNING)
    await asyncio.sleep(0.2)
    await house.stubs.jobs.CancelJob(generation_service_pb2.CancelJobRequest(job_id=job.id), timeout=T)
    async with asyncio.timeout(1.0):
        assert (await finish(house.stubs, job.id)).state == job_pb2.JOB_STATE_CANCELLED
    house.worker.load_s = 0.01
    assert (await finish(house.stubs, (await submit(house.stubs)).id)).state == job_pb2.JOB_STATE_SUCCEEDED


async def test_a_dropped_generate_cancels_its_job_and_a_dropped_watch_does_not(house: House) -> None:
    house.worker.step_s = 0.05
    call = house.stubs.jobs.Generate(generation_service_pb2.GenerateRequest(request=a_request(steps=50)), timeout=T)
    first = await anext(aiter(call))
    call.cancel()
    await until_state(house.stubs, first.event.job.id, job_pb2.JOB_STATE_CANCELLED)
    job = await submit(house.stubs, steps=10)
    watching = house.stubs.jobs.WatchJob(generation_service_pb2.WatchJobRequest(job_id=job.id), timeout=T)
    await anext(aiter(watching))
    watching.cancel()
    assert (await finish(house.stubs, job.id)).state == job_pb2.JOB_STATE_SUCCEEDED


BAD_FIELDS = [
    ({"width": 0}, "request.width"),
    ({"width": -128}, "request.width"),
    ({"width": 127}, "request.width"),
    ({"height": 4096}, "request.height"),
    ({"steps": 0}, "request.steps"),
    ({"steps": -1}, "request.steps"),
    ({"steps": 51}, "request.steps"),
    ({"guidance": -1.0}, "request.guidance"),
    ({"guidance": float("nan")}, "request.guidance"),
    ({"guidance": float("inf")}, "request.guidance"),
    ({"guidance": 21.0}, "request.guidance"),
    ({"prompt": ""}, "request.prompt"),
    ({"prompt": "a\0b"}, "request.prompt"),
    ({"prompt": "x" * 501}, "request.prompt"),
    ({"negative_prompt": "a\0b"}, "request.negative_prompt"),
    ({"format": 99}, "request.format"),
    ({"preferences": {"scheme": 99}}, "request.preferences.scheme"),
]


@pytest.mark.parametrize(("fields", "path"), BAD_FIELDS)
async def test_a_bad_field_is_named_and_nothing_is_queued(house: House, fields: dict, path: str) -> None:  # type: ignore[type-arg]
    request = generation_pb2.GenerationRequest(**{"model": "tiny", "prompt": "x", **fields})
    with pytest.raises(grpc.aio.AioRpcError) as failure:
        await house.stubs.jobs.SubmitJob(generation_service_pb2.SubmitJobRequest(request=request), timeout=T)
    error = from_rpc_error(failure.value)
    assert failure.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert error.reason == "INVALID_REQUEST"
    assert list(error.violations) == [path]  # type: ignore[attr-defined]
    listed = await house.stubs.jobs.ListJobs(generation_service_pb2.ListJobsRequest(), timeout=T)
    assert not listed.jobs


async def code_of(call: object) -> tuple[grpc.StatusCode, str]:
    """The status code and reason that a call ends with."""

    async def exhaust() -> None:
        if hasattr(call, "__aiter__"):
            async for _ in call:
                pass
        else:
            await call  # type: ignore[misc]

    with pytest.raises(grpc.aio.AioRpcError) as failure:
        await exhaust()
    return failure.value.code(), from_rpc_error(failure.value).reason


async def test_unknown_things_are_not_found(house: House) -> None:
    jobs, service = house.stubs.jobs, generation_service_pb2
    for job_id in ("", "nonsense", "../../etc/passwd", "0" * 24, "0" * 100_000):
        expected = (grpc.StatusCode.NOT_FOUND, "UNKNOWN_JOB")
        assert await code_of(jobs.GetJob(service.GetJobRequest(job_id=job_id), timeout=T)) == expected
        assert await code_of(jobs.CancelJob(service.CancelJobRequest(job_id=job_id), timeout=T)) == expected
        assert await code_of(jobs.WatchJob(service.WatchJobRequest(job_id=job_id), timeout=T)) == expected
        assert await code_of(jobs.DownloadOutput(service.DownloadOutputRequest(job_id=job_id), timeout=T)) == expected
    wrong = generation_pb2.GenerationRequest(model="tinny", prompt="x")
    with pytest.raises(grpc.aio.AioRpcError, match="tiny") as failure:
        await jobs.SubmitJob(service.SubmitJobRequest(request=wrong), timeout=T)
    assert failure.value.code() is grpc.StatusCode.NOT_FOUND


async def test_garbage_is_invalid_and_too_much_is_exhausted(house: House) -> None:
    submit_bytes = house.stubs.channel.unary_unary("/darkroom.v1.GenerationService/SubmitJob")
    code, reason = await code_of(submit_bytes(b"\xff\xff\xff", timeout=T))
    assert (code, reason) == (grpc.StatusCode.INVALID_ARGUMENT, "MALFORMED_MESSAGE")
    code, _ = await code_of(submit_bytes(b"\0" * (4 * 1024 * 1024 + 1), timeout=T))
    assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
    generate = house.stubs.channel.unary_stream("/darkroom.v1.GenerationService/Generate")
    assert (await code_of(generate(b"\xff", timeout=T)))[0] is grpc.StatusCode.INVALID_ARGUMENT
    empty = generation_service_pb2.SubmitJobRequest()
    assert (await code_of(house.stubs.jobs.SubmitJob(empty, timeout=T)))[1] == "INVALID_REQUEST"


async def test_a_job_without_a_file_can_not_be_downloaded(house: House) -> None:
    job = await finish(house.stubs, (await submit(house.stubs, "refused")).id)
    assert (job.state, job.error.reason) == (job_pb2.JOB_STATE_FAILED, "INVALID_REQUEST")
    request = generation_service_pb2.DownloadOutputRequest(job_id=job.id)
    expected = (grpc.StatusCode.FAILED_PRECONDITION, "NO_OUTPUT")
    assert await code_of(house.stubs.jobs.DownloadOutput(request, timeout=T)) == expected


async def test_fifty_concurrent_submits_with_one_id_make_one_job(house: House) -> None:
    request_id = str(uuid.uuid4())
    jobs = await asyncio.gather(*(submit(house.stubs, request_id=request_id) for _ in range(50)))
    assert len({job.id for job in jobs}) == 1
    assert len({job.request.seed for job in jobs}) == 1
    message = generation_service_pb2.SubmitJobRequest(request=a_request("a pear"), request_id=request_id)
    expected = (grpc.StatusCode.ALREADY_EXISTS, "REQUEST_ID_REUSED")
    assert await code_of(house.stubs.jobs.SubmitJob(message, timeout=T)) == expected
    no_uuid = generation_service_pb2.SubmitJobRequest(request=a_request(), request_id="seven")
    assert (await code_of(house.stubs.jobs.SubmitJob(no_uuid, timeout=T)))[0] is grpc.StatusCode.INVALID_ARGUMENT


async def test_jobs_are_listed_newest_first_in_pages_bound_to_their_filter(house: House) -> None:
    ids = [(await finish(house.stubs, (await submit(house.stubs)).id)).id for _ in range(5)]
    failed = (await finish(house.stubs, (await submit(house.stubs, "refused")).id)).id
    service = generation_service_pb2
    seen, token = [], ""
    while True:
        page = await house.stubs.jobs.ListJobs(service.ListJobsRequest(page_size=2, page_token=token), timeout=T)
        seen += [job.id for job in page.jobs]
        token = page.next_page_token
        if not token:
            break
    assert seen == [failed, *reversed(ids)]
    only = service.ListJobsRequest(states=[job_pb2.JOB_STATE_FAILED])
    assert [job.id for job in (await house.stubs.jobs.ListJobs(only, timeout=T)).jobs] == [failed]
    first = await house.stubs.jobs.ListJobs(service.ListJobsRequest(page_size=2), timeout=T)
    for bad in (
        service.ListJobsRequest(page_size=-1),
        service.ListJobsRequest(page_token="nonsense"),
        service.ListJobsRequest(page_token=first.next_page_token, states=[job_pb2.JOB_STATE_FAILED]),
        service.ListJobsRequest(states=[77]),
    ):
        assert (await code_of(house.stubs.jobs.ListJobs(bad, timeout=T)))[0] is grpc.StatusCode.INVALID_ARGUMENT


async def test_models_are_listed_found_planned_loaded_and_unloaded(house: House) -> None:
    models, service = house.stubs.models, model_service_pb2
    listed = await models.ListModels(service.ListModelsRequest(), timeout=T)
    assert [model.name for model in listed.models] == ["plain", "tiny"]
    page = await models.ListModels(service.ListModelsRequest(page_size=1), timeout=T)
    rest = await models.ListModels(service.ListModelsRequest(page_token=page.next_page_token), timeout=T)
    assert [model.name for model in (*page.models, *rest.models)] == ["plain", "tiny"]
    assert (await models.GetModel(service.GetModelRequest(model="small"), timeout=T)).model.name == "tiny"
    assert (await code_of(models.GetModel(service.GetModelRequest(model="x"), timeout=T)))[1] == "UNKNOWN_MODEL"
    planned = await models.PlanModel(service.PlanModelRequest(model="tiny"), timeout=T)
    assert (planned.plan.model, planned.device.name) == ("tiny", "imaginary")
    elsewhere = service.PlanModelRequest(model="tiny", device=device_pb2.Device(id="cuda:0", name="RTX 3090"))
    assert (await models.PlanModel(elsewhere, timeout=T)).device.name == "RTX 3090"
    events = [answer async for answer in models.LoadModel(service.LoadModelRequest(model="small"), timeout=T)]
    assert events[-1].event.loaded.plan.model == "tiny"
    assert events[-1].worker_id == "fake-0"
    unloaded = await models.UnloadModel(service.UnloadModelRequest(worker_id="fake-0"), timeout=T)
    assert not unloaded.status.HasField("loaded")
    missing = service.UnloadModelRequest(worker_id="nobody")
    assert (await code_of(models.UnloadModel(missing, timeout=T)))[1] == "UNKNOWN_WORKER"
    job = await finish(house.stubs, (await submit(house.stubs)).id)
    assert job.state == job_pb2.JOB_STATE_SUCCEEDED


async def test_a_worker_that_a_job_holds_is_not_unloaded(house: House) -> None:
    house.worker.step_s = 0.1
    job = await submit(house.stubs, steps=20)
    await until_state(house.stubs, job.id, job_pb2.JOB_STATE_RUNNING)
    request = model_service_pb2.UnloadModelRequest(worker_id="fake-0")
    expected = (grpc.StatusCode.FAILED_PRECONDITION, "WORKER_HELD")
    assert await code_of(house.stubs.models.UnloadModel(request, timeout=T)) == expected
    assert (await finish(house.stubs, job.id)).state == job_pb2.JOB_STATE_SUCCEEDED


async def test_workers_are_listed_with_what_is_wrong_with_them(house: House) -> None:
    request = cluster_service_pb2.ListWorkersRequest()
    workers = (await house.stubs.cluster.ListWorkers(request, timeout=T)).workers
    assert [(worker.is_reachable, worker.status.worker_id) for worker in workers] == [(True, "fake-0")]
    await house.server.cut()
    workers = (await house.stubs.cluster.ListWorkers(request, timeout=T)).workers
    assert [(worker.is_reachable, worker.HasField("status")) for worker in workers] == [(False, False)]
    assert house.server.address in workers[0].problem


async def test_without_a_worker_jobs_wait_and_say_why_and_loads_are_refused(tmp_path: Path) -> None:
    async with serve_gateway(settings_for(tmp_path, "127.0.0.1:9", "127.0.0.1:9")) as gateway:
        await asyncio.sleep(0.5)
        job = await submit(gateway.stubs)
        assert job.state == job_pb2.JOB_STATE_QUEUED
        assert "no worker answers: 127.0.0.1:9" in (await get(gateway.stubs, job.id)).progress.detail
        call = gateway.stubs.jobs.WatchJob(generation_service_pb2.WatchJobRequest(job_id=job.id), timeout=T)
        told = [await anext(aiter(call)) for _ in range(2)]
        assert told[1].event.progress.phase == generation_pb2.PHASE_QUEUED
        assert "no worker answers" in told[1].event.progress.detail
        load = gateway.stubs.models.LoadModel(model_service_pb2.LoadModelRequest(model="tiny"), timeout=T)
        assert await code_of(load) == (grpc.StatusCode.UNAVAILABLE, "NO_WORKER")
        request = generation_service_pb2.CancelJobRequest(job_id=job.id)
        cancelled = (await gateway.stubs.jobs.CancelJob(request, timeout=T)).job
        assert cancelled.state == job_pb2.JOB_STATE_CANCELLED


async def test_a_full_queue_says_when_to_come_back(tmp_path: Path) -> None:
    settings = settings_for(tmp_path, "127.0.0.1:9", "127.0.0.1:9", gateway_max_queued=3)
    async with serve_gateway(settings) as gateway:
        results = await asyncio.gather(*(submit(gateway.stubs) for _ in range(32)), return_exceptions=True)
        refused = [result for result in results if isinstance(result, grpc.aio.AioRpcError)]
        assert len(refused) == 29
        error = from_rpc_error(refused[0])
        assert (error.reason, error.retry_after_s) == ("QUEUE_FULL", 5.0)
        assert refused[0].code() is grpc.StatusCode.RESOURCE_EXHAUSTED


async def submit_as(
    stubs: Stubs, tenant: str, priority: job_pb2.JobPriority.ValueType = job_pb2.JOB_PRIORITY_UNSPECIFIED
) -> job_pb2.Job:
    message = generation_service_pb2.SubmitJobRequest(request=a_request(), terms=job_pb2.JobTerms(priority=priority))
    return (await stubs.jobs.SubmitJob(message, timeout=T, metadata=(("x-darkroom-tenant", tenant),))).job


async def test_tenants_take_turns_and_a_high_priority_goes_before_all(house: House) -> None:
    house.worker.step_s = 0.05
    running = await submit(house.stubs)
    await until_state(house.stubs, running.id, job_pb2.JOB_STATE_RUNNING)
    greedy = [await submit_as(house.stubs, "greedy") for _ in range(6)]
    late = [await submit_as(house.stubs, "late") for _ in range(2)]
    urgent = await submit_as(house.stubs, "greedy", job_pb2.JOB_PRIORITY_HIGH)
    ended = [await finish(house.stubs, job.id) for job in (*greedy, *late, urgent)]
    order = [job.id for job in sorted(ended, key=lambda job: job.started_at.ToNanoseconds())]
    assert order[0] == urgent.id
    assert {*order[1:5]} == {greedy[0].id, greedy[1].id, late[0].id, late[1].id}
    assert [job_id for job_id in order if job_id in [job.id for job in greedy]] == [job.id for job in greedy]
    assert {job.tenant for job in ended} == {"greedy", "late"}
    assert running.tenant == "default"


async def test_a_tenants_part_of_the_queue_is_bounded_and_the_others_still_submit(tmp_path: Path) -> None:
    settings = settings_for(tmp_path, "127.0.0.1:9", "127.0.0.1:9", gateway_max_queued_per_tenant=2)
    async with serve_gateway(settings) as gateway:
        for _ in range(2):
            await submit_as(gateway.stubs, "a")
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await submit_as(gateway.stubs, "a")
        error = from_rpc_error(refused.value)
        assert (error.reason, error.facts["subject"], error.retry_after_s) == ("QUEUE_FULL", "tenant:a", 5.0)
        quota = error_details_pb2.QuotaFailure()
        status = rpc_status.from_call(refused.value)
        assert status is not None
        assert any(detail.Unpack(quota) for detail in status.details)
        assert quota.violations[0].subject == "tenant:a"
        await submit_as(gateway.stubs, "b")


async def test_names_and_priorities_that_nobody_knows_are_refused(house: House) -> None:
    for message, tenant in (
        (generation_service_pb2.SubmitJobRequest(request=a_request()), "No Such Name"),
        (generation_service_pb2.SubmitJobRequest(request=a_request(), terms={"priority": 9}), "a"),  # type: ignore[arg-type]
    ):
        call = house.stubs.jobs.SubmitJob(message, timeout=T, metadata=(("x-darkroom-tenant", tenant),))
        assert await code_of(call) == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_REQUEST")
