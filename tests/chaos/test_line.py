"""Fairness on real processes: whoever floods the line, others get their turns, also when a gateway dies meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from darkroom.v1 import generation_pb2, job_pb2
from darkroom.v1 import generation_service_pb2 as messages
from tests.chaos.clients import TENANT
from tests.chaos.cluster import Size
from tests.chaos.scene import CALL_S, Scene, open_scene

pytestmark = [pytest.mark.redis, pytest.mark.timeout(240)]
LEASE_S = 1.5
# What the cluster's gateways are set to.
PATIENCE_S = 2.0
NUM_WORKERS = 2
STEP_S, STEPS = 0.1, 3


@pytest_asyncio.fixture(scope="module")
async def scene(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Scene]:
    # Job by job: a batch would take four of the line at once.
    alone = {"DARKROOM_GATEWAY_MAX_BATCH": "1"}
    size = Size(num_gateways=2, num_workers=NUM_WORKERS, lease_s=LEASE_S, idle_s=5.0, grace_s=4.0, more=alone)
    async with open_scene(size, tmp_path_factory.mktemp("cluster")) as scene:
        yield scene


async def submit(scene: Scene, *, tenant: str = "default", model: str = "emoji") -> str:
    request = generation_pb2.GenerationRequest(
        model=model, prompt=f"rehearse: steps of {STEP_S} s", steps=STEPS, seed=1
    )
    message = messages.SubmitJobRequest(request=request)
    answer = await scene.stubs[1].jobs.SubmitJob(message, timeout=CALL_S, metadata=((TENANT, tenant),))
    return str(answer.job.id)


async def flood(scene: Scene, num_jobs: int, **of: str) -> list[str]:
    return list(await asyncio.gather(*(submit(scene, **of) for _ in range(num_jobs))))


async def end_all(scene: Scene, *job_ids: str) -> dict[str, job_pb2.Job]:
    jobs = await scene.finish(*job_ids)
    assert {job.state for job in jobs} == {job_pb2.JOB_STATE_SUCCEEDED}
    return {job.id: job for job in jobs}


def waited_s(job: job_pb2.Job) -> float:
    return (job.started_at.ToMilliseconds() - job.created_at.ToMilliseconds()) / 1000


async def test_a_tenant_that_floods_the_line_takes_turns_with_one_that_does_not(scene: Scene) -> None:
    many = await flood(scene, 40, tenant="many")
    few = await flood(scene, 4, tenant="few")
    await scene.cluster.gateways[0].kill()
    jobs = await end_all(scene, *many, *few)
    await scene.cluster.gateways[0].start()
    starts = sorted(jobs[job_id].started_at.ToMilliseconds() for job_id in many)
    for place, start in enumerate(sorted(jobs[job_id].started_at.ToMilliseconds() for job_id in few)):
        before = sum(other < start for other in starts)
        # In turn: as many of the flood as of the others, and what ran or was claimed when they came.
        assert before <= place + 1 + 3 * NUM_WORKERS, (place, before)


async def test_a_job_for_a_cold_model_waits_no_longer_than_the_patience_beside_a_hot_one(scene: Scene) -> None:
    hot = await flood(scene, 4)
    cold = await submit(scene, model="emoji-cold")
    hot += await flood(scene, 60)
    await scene.cluster.gateways[0].kill()
    jobs = await end_all(scene, *hot, cold)
    await scene.cluster.gateways[0].start()
    # It waits for what stood before it, is passed over for the patience, and is next then: behind a job on each worker,
    # or one that a dead gateway held.
    assert waited_s(jobs[cold]) < PATIENCE_S + 4 * STEP_S * STEPS + 2 * LEASE_S + 1.0
    assert max(waited_s(jobs[job_id]) for job_id in hot) > waited_s(jobs[cold])
