"""Jobs that run as one batch: each keeps its own picture, cancel, deadline, failure and blame.

One worker with the rehearsal engine, two gateways that let four jobs run together. A slow job holds the worker while
the batch gathers behind it.
"""

from __future__ import annotations

import asyncio
import hashlib
import signal
from collections.abc import AsyncIterator, Sequence

import pytest
import pytest_asyncio

from darkroom.v1 import generation_pb2, job_pb2, plan_pb2
from darkroom.v1 import generation_service_pb2 as messages
from tests.chaos.cluster import Size
from tests.chaos.evidence import JobEvidence
from tests.chaos.scene import Scene, open_scene, said
from tests.engines.rehearsal import paint

pytestmark = [pytest.mark.redis, pytest.mark.timeout(240)]
SUCCEEDED, FAILED, CANCELLED = job_pb2.JOB_STATE_SUCCEEDED, job_pb2.JOB_STATE_FAILED, job_pb2.JOB_STATE_CANCELLED
STEPS = 6
SLOW = "rehearse: steps of 0.2 s"


@pytest_asyncio.fixture(scope="module")
async def shared(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Scene]:
    size = Size(num_gateways=2, num_workers=1, lease_s=1.5, idle_s=5.0, grace_s=1.5)
    async with open_scene(size, tmp_path_factory.mktemp("batches")) as scene:
        yield scene


@pytest_asyncio.fixture
async def scene(shared: Scene) -> Scene:
    """The module's cluster, with everything alive and the model loaded."""
    for process in shared.cluster.processes:
        if not process.pid:
            await process.start()
    await shared.finish(*[await shared.submit_in_the_end("all is well", gateway=place) for place in range(2)])
    await shared.until_all_know_what_is_loaded()
    return shared


async def submit_together(scene: Scene, prompts: Sequence[str], *, late_s: float = 0.0) -> list[str]:
    """Submits jobs of one shape behind one that holds the worker; returns their ids. `late_s` ends the first one."""
    holder = await scene.submit(SLOW, steps=2)
    await scene.until_step(holder, 1)
    job_ids = []
    for place, prompt in enumerate(prompts):
        request = generation_pb2.GenerationRequest(model="emoji", prompt=prompt, steps=STEPS, seed=place)
        message = messages.SubmitJobRequest(request=request)
        if late_s and not place:
            message.terms.deadline.FromMilliseconds(int(late_s * 1000))
        job_ids.append((await scene.stubs[place % 2].jobs.SubmitJob(message, timeout=10)).job.id)
    return job_ids


async def found(scene: Scene, job_ids: Sequence[str]) -> list[JobEvidence]:
    """What there is of the jobs once all have ended."""
    await scene.finish(*job_ids)
    evidence = (await scene.all_evidence()).jobs
    return [evidence[job_id] for job_id in job_ids]


def check_whole(evidence: JobEvidence, *, attempts: int = 1, starts: int = 1) -> None:
    """It ended well, once, with the picture that its own request gives; its steps were begun so often."""
    job = evidence.job
    assert (job.state, job.attempts, evidence.terminal_writes) == (SUCCEEDED, attempts, 1), job.error
    painted = hashlib.sha256(paint(job.request, plan_pb2.Plan())).hexdigest()
    assert [*evidence.files.values(), job.output.sha256] == [painted] * 2
    assert evidence.num_starts == starts


def batch_of(job: job_pb2.Job) -> tuple[str, str]:
    """How many were asked for together, and how many were made together."""
    return next(((knob.requested, knob.engaged) for knob in job.output.engagements if knob.knob == "batch"), ("", ""))


async def test_waiting_jobs_of_one_shape_run_together_and_each_keeps_its_own_picture(scene: Scene) -> None:
    jobs = await found(scene, await submit_together(scene, ["one", "rehearse: broken at step 2", "three", "four"]))
    broken = jobs.pop(1)
    assert (broken.job.state, broken.job.error.reason) == (FAILED, "BROKEN_OUTPUT")
    for evidence in jobs:
        check_whole(evidence)
        assert batch_of(evidence.job) == ("4", "4")
    assert len({evidence.job.output.sha256 for evidence in jobs}) == 3
    assert len({evidence.token for evidence in jobs}) == 1


async def test_a_job_of_a_batch_is_cancelled_or_late_alone(scene: Scene) -> None:
    job_ids = await submit_together(scene, ["rehearse: steps of 0.5 s"] * 4, late_s=1.2)
    await scene.until_step(job_ids[3], 1)
    await scene.stubs[0].jobs.CancelJob(messages.CancelJobRequest(job_id=job_ids[1]), timeout=10)
    late, cancelled, *others = await found(scene, job_ids)
    assert (late.job.state, late.job.error.reason) == (FAILED, "DEADLINE_EXCEEDED")
    assert cancelled.job.state == CANCELLED
    for stopped in (late, cancelled):
        assert stopped.job.finished_at.ToNanoseconds() < others[0].job.finished_at.ToNanoseconds()
        assert not stopped.files
    for evidence in others:
        check_whole(evidence)


async def test_a_batch_that_runs_out_of_memory_is_halved_until_it_fits(scene: Scene) -> None:
    orders = ["rehearse: out of memory beyond 2 at step 3", "rehearse: out of memory beyond 1 at step 2"]
    jobs = await found(scene, await submit_together(scene, ["one", orders[0], "three", orders[1]]))
    for evidence, starts in zip(jobs, (2, 2, 3, 3), strict=True):
        check_whole(evidence, starts=starts)
    assert [batch_of(evidence.job) for evidence in jobs] == [("4", "2"), ("4", "2"), ("4", "1"), ("4", "1")]


async def test_of_a_batch_whose_engine_dies_each_is_tried_alone_and_only_the_culprit_is_blamed(scene: Scene) -> None:
    job_ids = await submit_together(scene, ["one", "rehearse: crash at step 2", "three"])
    one, culprit, three = await found(scene, job_ids)
    for evidence in (one, three):
        check_whole(evidence, attempts=2, starts=2)
        assert (evidence.num_deaths, batch_of(evidence.job)) == (0, ("", ""))
        assert [attempt.error.reason for attempt in evidence.job.failed_attempts] == ["ENGINE_DIED"]
    assert (culprit.job.state, culprit.job.error.reason, culprit.num_deaths) == (FAILED, "POISON", 2)
    dead = await scene.stubs[0].jobs.ListDeadJobs(messages.ListDeadJobsRequest(), timeout=10)
    assert [job.id for job in dead.jobs] == [job_ids[1]]


@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGTERM])
async def test_the_next_gateway_goes_on_with_the_whole_batch_and_no_step_is_computed_twice(
    scene: Scene, ending: signal.Signals
) -> None:
    # Longer than a gateway that is told to stop may wait for them.
    job_ids = await submit_together(scene, ["rehearse: steps of 0.5 s"] * 3)
    await scene.until_step(job_ids[0], 1)
    other = 1 - scene.driver(job_ids[0])
    driver = scene.cluster.gateways[1 - other]
    await (driver.kill() if ending == signal.SIGKILL else driver.terminate())
    jobs = await found(scene, job_ids)
    for evidence in jobs:
        check_whole(evidence)
        assert batch_of(evidence.job) == ("3", "3")
        assert any(entry["event"] == "job_adopted" for entry in said(scene.cluster.gateways[other], evidence.job.id))
    assert len({evidence.token for evidence in jobs}) == 1


async def test_jobs_of_other_steps_or_wishes_run_by_themselves(scene: Scene) -> None:
    job_ids = await submit_together(scene, ["one"])
    wishes = plan_pb2.PlanPreferences(attention=plan_pb2.ATTENTION_BACKEND_NATIVE)
    for steps, preferences in ((STEPS + 1, plan_pb2.PlanPreferences()), (STEPS, wishes)):
        request = generation_pb2.GenerationRequest(model="emoji", prompt="x", steps=steps, preferences=preferences)
        answer = await scene.stubs[0].jobs.SubmitJob(messages.SubmitJobRequest(request=request), timeout=10)
        job_ids.append(answer.job.id)
    for evidence in await found(scene, job_ids):
        check_whole(evidence)
        assert batch_of(evidence.job) == ("", "")


async def test_a_lone_job_waits_for_no_other(scene: Scene) -> None:
    began = asyncio.get_running_loop().time()
    await scene.finish(await scene.submit("alone"))
    assert asyncio.get_running_loop().time() - began < 2
