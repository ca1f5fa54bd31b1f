"""Jobs, models and workers: listed, found, loaded, held."""

from __future__ import annotations

import grpc
import pytest

from darkroom.v1 import (
    cluster_service_pb2,
    device_pb2,
    generation_service_pb2,
    job_pb2,
    model_service_pb2,
)
from tests.contract.house import House, T, code_of, finish, submit, until_state

pytestmark = pytest.mark.redis


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
    assert [model.name for model in listed.models] == ["editor", "plain", "tiny"]
    page = await models.ListModels(service.ListModelsRequest(page_size=1), timeout=T)
    rest = await models.ListModels(service.ListModelsRequest(page_token=page.next_page_token), timeout=T)
    assert [model.name for model in (*page.models, *rest.models)] == ["editor", "plain", "tiny"]
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
