"""Promises that chance does not show for certain, each broken on purpose at the moment where it would hurt."""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
import uuid
from collections.abc import AsyncIterator

import grpc
import psutil
import pytest
import pytest_asyncio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from darkroom.rpc.channels import open_channel
from darkroom.v1 import generation_pb2, job_pb2
from tests.chaos.cluster import Size
from tests.chaos.evidence import JobEvidence
from tests.chaos.process import Process
from tests.chaos.scene import Scene, open_scene, said

pytestmark = [pytest.mark.redis, pytest.mark.timeout(240)]
LEASE_S = 1.5
SUCCEEDED, FAILED = job_pb2.JOB_STATE_SUCCEEDED, job_pb2.JOB_STATE_FAILED
DECODING = generation_pb2.PHASE_DECODING


@pytest_asyncio.fixture(scope="module")
async def shared(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Scene]:
    size = Size(num_gateways=2, num_workers=2, lease_s=LEASE_S, idle_s=5.0, grace_s=4.0)
    async with open_scene(size, tmp_path_factory.mktemp("cluster")) as scene:
        yield scene


@pytest_asyncio.fixture
async def scene(shared: Scene) -> AsyncIterator[Scene]:
    """The module's cluster, well before and after each scenario."""
    yield shared
    for link in shared.cluster.links:
        link.heal()
    for process in shared.cluster.processes:
        process.send(signal.SIGCONT)
        if not process.pid:
            await process.start()
    await shared.finish(*[await shared.submit_in_the_end("all is well", gateway=place) for place in range(2)])


def check_once(found: JobEvidence, *, steps: int) -> None:
    """One end, one file, and every step computed once."""
    assert found.job.state == SUCCEEDED, found.job.error
    assert found.terminal_writes == 1
    assert list(found.files) == [f"{found.job.id}-{found.token}"]
    assert [step for computed in found.steps.values() for step in computed] == list(range(1, steps + 1))


async def until_gone(scene: Scene, gateway: int, job_id: str) -> None:
    """Returns when a gateway has said that the job is no longer its own."""

    async def has_said() -> bool:
        return any(entry["event"] == "job_abandoned" for entry in said(scene.cluster.gateways[gateway], job_id))

    await scene.until(has_said, f"gateway {gateway} abandons {job_id}")


# -- R2, R20: whoever was away for longer than the lease changes nothing any more -------------------------------------


async def test_a_gateway_that_slept_for_two_leases_commits_nothing_and_leaves_no_file(scene: Scene) -> None:
    job_id = await scene.submit("rehearse: hang for 2 s while decoding")
    await scene.until_phase(job_id, DECODING)
    sleeper = scene.driver(job_id)
    scene.cluster.gateways[sleeper].send(signal.SIGSTOP)
    await asyncio.sleep(2 * LEASE_S)
    await scene.finish(job_id)
    scene.cluster.gateways[sleeper].send(signal.SIGCONT)
    await until_gone(scene, sleeper, job_id)
    found = await scene.evidence(job_id)
    check_once(found, steps=4)
    assert found.num_claims == 1


async def test_a_worker_that_slept_for_too_long_is_refused_by_its_token_and_works_again(scene: Scene) -> None:
    job_id = await scene.submit("rehearse: steps of 0.4 s", steps=6)
    await scene.until_step(job_id, 1)
    name = (await scene.get(job_id)).worker_id
    worker = next(worker for worker in scene.cluster.workers if worker.name == name)
    worker.send(signal.SIGSTOP)
    done = (await scene.finish(job_id))[0]
    worker.send(signal.SIGCONT)
    assert (done.state, done.attempts) == (SUCCEEDED, 2)
    assert done.worker_id != name
    found = await scene.evidence(job_id)
    assert (found.terminal_writes, len(found.files), found.num_lost) == (1, 1, 1)
    names = {done.worker_id for done in await scene.finish(*[await scene.submit("next") for _ in range(8)])}
    assert names <= {"worker-0", "worker-1"}


async def test_a_gateway_cut_off_from_redis_fences_itself_and_costs_no_step(scene: Scene) -> None:
    job_id = await scene.submit("rehearse: steps of 0.5 s", steps=8)
    await scene.until_step(job_id, 1)
    lonely = scene.driver(job_id)
    scene.cluster.redis_links[lonely].cut()
    await until_gone(scene, lonely, job_id)
    await scene.until(lambda: _is_driven_by(scene, job_id, 1 - lonely), "the other gateway adopts")
    scene.cluster.redis_links[lonely].heal()
    await scene.finish(job_id)
    check_once(await scene.evidence(job_id), steps=8)


async def test_a_gateway_whose_redis_says_nothing_fences_itself_and_costs_no_step(scene: Scene) -> None:
    job_id = await scene.submit("rehearse: steps of 0.5 s", steps=8)
    await scene.until_step(job_id, 1)
    lonely = scene.driver(job_id)
    scene.cluster.redis_links[lonely].stall()
    await scene.until(lambda: _is_driven_by(scene, job_id, 1 - lonely), "the other gateway adopts")
    await asyncio.sleep(LEASE_S)
    scene.cluster.redis_links[lonely].heal()
    await scene.finish(job_id)
    await until_gone(scene, lonely, job_id)
    check_once(await scene.evidence(job_id), steps=8)


async def test_a_gateway_cut_off_from_a_worker_gives_its_job_away(scene: Scene) -> None:
    job_id = await scene.submit("rehearse: steps of 0.5 s", steps=8)
    await scene.until_step(job_id, 1)
    lonely, name = scene.driver(job_id), (await scene.get(job_id)).worker_id
    scene.cluster.worker_links[lonely][int(name[-1])].cut()
    done = (await scene.finish(job_id))[0]
    found = await scene.evidence(job_id)
    assert (done.state, found.terminal_writes, len(found.files)) == (SUCCEEDED, 1, 1)
    assert found.num_starts <= found.num_claims


async def _is_driven_by(scene: Scene, job_id: str, gateway: int) -> bool:
    return scene.driver(job_id) == gateway


# -- R3, R4: silence within the budget is no hang, beyond it is; and only the guilty are blamed -----------------------


async def test_a_step_that_holds_the_interpreter_for_two_leases_keeps_its_lease_and_one_that_never_ends_is_hung(
    scene: Scene,
) -> None:
    slow = await scene.submit(f"rehearse: freeze for {2 * LEASE_S} s at step 2")
    stuck = await scene.submit("rehearse: freeze at step 2")
    jobs = await scene.finish(slow, stuck)
    found = await scene.evidence(slow)
    check_once(found, steps=4)
    events = [entry["event"] for gateway in scene.cluster.gateways for entry in said(gateway, slow)]
    assert "job_adopted" not in events
    assert (jobs[1].state, jobs[1].error.reason, jobs[1].attempts) == (FAILED, "POISON", 2)
    assert jobs[1].error.metadata["last_reason"] == "ENGINE_HUNG"


async def test_poison_is_blamed_after_two_deaths_and_no_bystander_is(scene: Scene) -> None:
    before = [await scene.submit("innocent", gateway=place % 2) for place in range(6)]
    # Of a shape of its own: what dies in a batch is tried alone before it is blamed (test_batches.py).
    poison = await scene.submit("rehearse: crash at step 2", steps=5)
    after = [await scene.submit("innocent", gateway=place % 2) for place in range(6)]
    guilty, *others = await scene.finish(poison, *before, *after)
    assert (guilty.state, guilty.error.reason, guilty.attempts) == (FAILED, "POISON", 2)
    assert guilty.error.metadata["exit_code"] == "137"
    assert {(job.state, job.attempts) for job in others} == {(SUCCEEDED, 1)}


# -- R15: who can't generate gets nothing to do ------------------------------------------------------------------------


async def test_a_wedged_engine_turns_its_worker_off_and_jobs_go_elsewhere(scene: Scene) -> None:
    wedged, other = scene.cluster.workers
    engine = await scene.engine(wedged)
    engine.suspend()
    await scene.until(lambda: _is_serving(wedged, is_wanted=False), "the wedged worker says that it serves nothing")
    await asyncio.sleep(2.5)  # gateways look every 2 s
    jobs = await scene.finish(*[await scene.submit("elsewhere", gateway=place % 2) for place in range(6)])
    assert {(job.state, job.attempts, job.worker_id) for job in jobs} == {(SUCCEEDED, 1, other.name)}
    with contextlib.suppress(psutil.NoSuchProcess):  # its watchdog may have replaced it
        engine.resume()
    await scene.until(lambda: _is_serving(wedged, is_wanted=True), "the worker serves again")


async def _is_serving(worker: Process, *, is_wanted: bool) -> bool:
    async with open_channel(worker.address) as channel:
        request = health_pb2.HealthCheckRequest(service="darkroom.v1.WorkerService")
        answer = await health_pb2_grpc.HealthStub(channel).Check(request, timeout=5)
    return (answer.status == health_pb2.HealthCheckResponse.SERVING) == is_wanted


# -- R6: one request id is one job ------------------------------------------------------------------------------------


async def test_fifty_submits_with_one_id_through_two_gateways_are_one_job(scene: Scene) -> None:
    request_id = str(uuid.uuid4())
    calls = (scene.submit("once", request_id=request_id, gateway=place % 2) for place in range(50))
    assert len(set(await asyncio.gather(*calls))) == 1


async def test_a_submit_whose_gateway_died_before_it_could_answer_is_repeated_to_one_job(scene: Scene) -> None:
    request_id = str(uuid.uuid4())
    known = set((await scene.all_evidence()).jobs)
    scene.cluster.redis_links[0].stall_answers()
    call = asyncio.create_task(scene.submit("unheard", request_id=request_id, gateway=0))

    async def is_written() -> bool:
        return len((await scene.all_evidence()).jobs.keys() - known) == 1

    await scene.until(is_written, "the job is in Redis")
    await scene.cluster.gateways[0].kill()
    with pytest.raises(grpc.aio.AioRpcError):
        await call
    job_id = await scene.submit("unheard", request_id=request_id, gateway=1)
    await scene.finish(job_id)
    assert (await scene.all_evidence()).jobs.keys() - known == {job_id}


# -- R12, R13: stopping and coming back -------------------------------------------------------------------------------


async def test_a_worker_that_is_told_to_stop_twice_hands_its_job_back_uncharged_and_exits_0(scene: Scene) -> None:
    job_id = await scene.submit("rehearse: steps of 0.5 s", steps=12)
    await scene.until_step(job_id, 1)
    name = (await scene.get(job_id)).worker_id
    worker = next(worker for worker in scene.cluster.workers if worker.name == name)
    worker.send(signal.SIGTERM)
    await asyncio.sleep(0.3)
    assert await worker.terminate() == 0
    done = (await scene.finish(job_id))[0]
    assert (done.state, done.attempts) == (SUCCEEDED, 1)
    assert done.worker_id != name
    found = await scene.evidence(job_id)
    assert (found.num_claims, found.num_lost, found.num_deaths) == (2, 0, 0)


@pytest.mark.parametrize("victim", ["gateway-0", "planner", "redis", "worker-0"])
async def test_a_restart_under_load_loses_no_accepted_job(scene: Scene, victim: str) -> None:
    process = next(process for process in scene.cluster.processes if process.name == victim)
    job_ids = [await scene.submit("rehearse: steps of 0.1 s", gateway=place % 2) for place in range(4)]
    await process.kill()
    await asyncio.sleep(0.2)
    await process.start()
    job_ids += [await scene.submit_in_the_end("after", gateway=place % 2) for place in range(4)]
    jobs = await scene.finish(*job_ids)
    assert {(job.state, job.id) for job in jobs} == {(SUCCEEDED, job_id) for job_id in job_ids}


async def test_a_full_disk_makes_jobs_wait_and_fails_none(scene: Scene) -> None:
    for gateway in scene.cluster.gateways:
        gateway.limit_files(0)
    job_ids = [await scene.submit("patient", gateway=place % 2) for place in range(4)]
    await asyncio.sleep(8)
    assert {(await scene.get(job_id)).state for job_id in job_ids} <= {
        job_pb2.JOB_STATE_QUEUED,
        job_pb2.JOB_STATE_RUNNING,
    }
    for gateway in scene.cluster.gateways:
        gateway.limit_files(None)
    jobs = await scene.finish(*job_ids)
    assert {job.state for job in jobs} == {SUCCEEDED}
    assert max([(await scene.evidence(job_id)).num_lost for job_id in job_ids]) <= 4


async def test_a_gateway_with_a_full_disk_adopts_nothing_but_ends_what_is_late_and_says_why_jobs_wait(
    scene: Scene,
) -> None:
    """Gateway 0 knows of its full disk when gateway 1 dies with a job that runs."""
    full, dead = scene.cluster.gateways
    said_before = full.log.count("DISK_FULL")
    full.limit_files(0)
    dead.send(signal.SIGSTOP)
    tried = await scene.submit("finds out", gateway=0)

    async def has_found_out() -> bool:
        return full.log.count("DISK_FULL") > said_before

    await scene.until(has_found_out, "gateway 0 finds its disk full")
    dead.send(signal.SIGCONT)
    await scene.finish(tried)
    running = await scene.submit("rehearse: steps of 0.3 s", steps=8, gateway=1)
    due = await scene.submit("rehearse: steps of 0.3 s", steps=60, gateway=1, deadline_s=2 * LEASE_S)
    for job_id in (running, due):
        await scene.until_step(job_id, 1)
        assert scene.driver(job_id) == 1
    await dead.kill()
    waiting = await scene.submit("waits", gateway=0)
    await asyncio.sleep(3 * LEASE_S)
    (late,) = await scene.finish(due)
    assert late.error.reason == "DEADLINE_EXCEEDED"
    assert late.finished_at.ToMilliseconds() - late.deadline_at.ToMilliseconds() < 3000 * LEASE_S
    assert not said(full, running)
    assert "File too large" in (await scene.get(waiting)).progress.detail
    full.limit_files(None)
    jobs = await scene.finish(running, waiting)
    assert {job.state for job in jobs} == {SUCCEEDED}
    check_once(await scene.evidence(running), steps=8)


# -- R14: what a watch tells is true, from any cursor -----------------------------------------------------------------


async def test_every_watch_from_every_cursor_tells_the_same_story_and_ends_it_once(scene: Scene) -> None:
    job_id = await scene.submit("rehearse: steps of 0.2 s", steps=8)
    dice = random.Random(3)
    early = [asyncio.create_task(scene.watch(job_id, gateway=place % 2)) for place in range(4)]
    await scene.until_step(job_id, 3)
    last = (await scene.get(job_id)).last_sequence
    cursors = [dice.randint(0, last + 3) for _ in range(12)]
    late = [scene.watch(job_id, after=cursor, gateway=place % 2) for place, cursor in enumerate(cursors)]
    streams = await asyncio.gather(*early, *late)
    story = {event.sequence: event for event in streams[0][1:]}
    for stream in streams:
        sequences = [event.sequence for event in stream]
        assert sequences == list(range(sequences[0], sequences[-1] + 1))
        ends = [event.HasField("job") and event.job.state == SUCCEEDED for event in stream]
        assert ends == [False] * (len(ends) - 1) + [True]
        assert all(event == story[event.sequence] for event in stream[1:] if event.sequence in story)
        fractions = [event.progress.fraction for event in stream if event.HasField("progress")]
        assert fractions == sorted(fractions)
        assert all(0 <= fraction <= 1 for fraction in fractions)
