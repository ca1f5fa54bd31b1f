"""Who goes next, on a real server: tenants in turns, priorities, bounds, and affinity that has an end."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import redis.asyncio as aioredis

from darkroom.rpc.errors import InvalidRequestError, QueueFullError
from darkroom.v1 import error_pb2, generation_pb2, job_pb2
from services.gateway.admission import find_tenant
from services.gateway.store.jobs import Jobs
from services.gateway.store.record import Claim
from services.gateway.store.vocabulary import Bounds, Setback
from tests.fakes.redis import open_jobs, serve_redis

pytestmark = pytest.mark.redis
LOW, NORMAL, HIGH = job_pb2.JOB_PRIORITY_LOW, job_pb2.JOB_PRIORITY_NORMAL, job_pb2.JOB_PRIORITY_HIGH
FAILED = error_pb2.Error(code=9, reason="POISON", message="enough")
BOUNDS = Bounds(1000, 1000)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[tuple[Jobs, aioredis.Redis]]:
    async with serve_redis(tmp_path) as server, open_jobs(server.url) as opened:
        yield opened


@pytest.fixture
def jobs(store: tuple[Jobs, aioredis.Redis]) -> Jobs:
    return store[0]


async def submit(
    jobs: Jobs,
    tenant: str = "default",
    priority: job_pb2.JobPriority.ValueType = NORMAL,
    kind: str = "tiny/0.0.0",
    bounds: Bounds = BOUNDS,
    shape: str = "",
) -> str:
    """Returns the job's id."""
    request = generation_pb2.GenerationRequest(model=kind.partition("/")[0])
    terms = job_pb2.JobTerms(priority=priority)
    return (await jobs.submit(request, kind, "", "d", bounds, terms, tenant, shape)).id


async def take(jobs: Jobs, loaded: str = "", patience_s: float = 10) -> Claim:
    got = await jobs.claim("w", loaded, [], patience_s, 10)
    assert isinstance(got, Claim)
    return got


async def serve_one(jobs: Jobs, loaded: str = "", patience_s: float = 10) -> job_pb2.Job:
    """Claims a job, ends it and returns it."""
    got = await take(jobs, loaded, patience_s)
    await jobs.succeed(got, generation_pb2.Output())
    return got.job


async def take_together(jobs: Jobs, room: int = 4, patience_s: float = 10) -> list[str]:
    """Claims for a worker that has "tiny" loaded and room for so many of 8x8; returns the jobs' ids in order."""
    got = await jobs.claim("w", "tiny/0.0.0", [], patience_s, 10, {"8x8": room, "16x16": 1})
    assert isinstance(got, Claim)
    for claim in got.others:
        assert (claim.token, claim.run_id, claim.job.worker_id) == (got.token, got.run_id, "w")
    return [claim.job.id for claim in (got, *got.others)]


async def end(jobs: Jobs) -> None:
    """Ends the running job well, whoever had it."""
    await jobs.abandon_all_leases()
    adopted = await jobs.adopt(10)
    assert adopted is not None
    await jobs.succeed(adopted, generation_pb2.Output())


async def give_back(jobs: Jobs, job_ids: list[str], setback: Setback) -> None:
    """Gives running jobs back, whoever had them."""
    await jobs.abandon_all_leases()
    adopted = await jobs.adopt(10)
    assert adopted is not None
    claims = [adopted, *adopted.others]
    assert {claim.job.id for claim in claims} == set(job_ids), "what runs together is adopted together"
    for claim in claims:
        await jobs.requeue(claim, setback, 9, FAILED)


async def test_a_batch_is_taken_in_the_order_of_the_line_and_no_larger_than_there_is_room(jobs: Jobs) -> None:
    ids = [await submit(jobs, tenant, shape="8x8 4") for tenant in ("a", "b", "a", "b", "c")]
    assert await take_together(jobs, room=1) == ids[:1]
    await jobs.claim("other", "", [], 10, 10)
    assert isinstance(await jobs.claim("w", "tiny/0.0.0", [], 10, 10, {"8x8": 4}), float), "the worker is taken"
    await give_back(jobs, ids[:1], Setback.RELEASED)
    assert await take_together(jobs, room=3) == [ids[0], ids[4], ids[2]]


@pytest.mark.parametrize("shape", ["", "8x8 5", "16x16 4"])
async def test_another_shape_goes_by_itself(jobs: Jobs, shape: str) -> None:
    first = await submit(jobs, shape="8x8 4")
    await submit(jobs, shape=shape)
    last = await submit(jobs, shape="8x8 4")
    assert await take_together(jobs) == [first, last]


async def test_a_batch_carries_no_lower_priority_along_and_passes_no_higher_one(jobs: Jobs) -> None:
    high = await submit(jobs, priority=HIGH, shape="8x8 4")
    await submit(jobs, priority=NORMAL, shape="8x8 4")
    assert await take_together(jobs) == [high]


async def test_a_head_that_was_passed_over_for_its_patience_lets_no_batch_by(jobs: Jobs) -> None:
    first = [await submit(jobs, shape="8x8 4"), await submit(jobs, shape="8x8 5"), await submit(jobs, shape="8x8 4")]
    assert await take_together(jobs, patience_s=0) == first[:1]


async def test_once_its_engine_died_a_job_runs_with_no_other(jobs: Jobs) -> None:
    ids = [await submit(jobs, shape="8x8 4") for _ in range(3)]
    assert await take_together(jobs) == ids
    await give_back(jobs, ids, Setback.SUSPECT)
    fresh = await submit(jobs, shape="8x8 4")
    taken = await take_together(jobs)
    assert taken == ids[:1]
    assert (await jobs.get(ids[0])).attempts == 2
    await give_back(jobs, taken, Setback.DEATH)
    assert await take_together(jobs) == ids[:1]
    await end(jobs)
    alone = []
    while len(alone) < 3:
        taken = await take_together(jobs)
        assert len(taken) == 1
        alone += taken
        await end(jobs)
    assert sorted(alone) == [*ids[1:], fresh]


async def test_jobs_of_one_place_in_line_go_in_the_order_of_their_arrival(jobs: Jobs) -> None:
    ids = [await submit(jobs, f"tenant-{number}") for number in range(20)]
    assert ids == sorted(ids)
    assert [(await serve_one(jobs)).id for _ in ids] == ids


async def test_a_tenants_jobs_keep_their_order(jobs: Jobs) -> None:
    ids = [await submit(jobs, "a") for _ in range(10)]
    assert [(await serve_one(jobs)).id for _ in ids] == ids


async def test_tenants_take_turns_however_much_one_of_them_has_waiting(jobs: Jobs) -> None:
    for _ in range(30):
        await submit(jobs, "greedy")
    served = [(await serve_one(jobs)).tenant for _ in range(5)]
    for _ in range(5):
        await submit(jobs, "late")
        await submit(jobs, "later")
    served += [(await serve_one(jobs)).tenant for _ in range(15)]
    assert Counter(served[5:]) == {"greedy": 5, "late": 5, "later": 5}
    for start in range(5, 20, 3):
        assert set(served[start : start + 3]) == {"greedy", "late", "later"}


async def test_a_tenant_that_comes_back_finds_neither_credit_nor_debt(jobs: Jobs) -> None:
    for _ in range(20):
        await submit(jobs, "busy")
    for _ in range(10):
        await serve_one(jobs)
    for _ in range(20):
        await submit(jobs, "idle-until-now")
    served = Counter([(await serve_one(jobs)).tenant for _ in range(10)])
    assert served == {"busy": 5, "idle-until-now": 5}


async def test_a_higher_priority_goes_first_and_none_waits_for_ever(jobs: Jobs) -> None:
    low = [await submit(jobs, priority=LOW) for _ in range(2)]
    normal = [await submit(jobs, priority=NORMAL) for _ in range(20)]
    high = [await submit(jobs, priority=HIGH) for _ in range(20)]
    order = [(await serve_one(jobs)).id for _ in range(42)]
    assert order[0] == high[0]
    before_second_normal = order[: order.index(normal[1])]
    assert set(before_second_normal) >= set(high[:8])
    assert order.index(low[0]) < order.index(normal[2])
    assert order.index(low[1]) < len(order)
    assert [job for job in order if job in high] == high


async def test_high_priority_jobs_that_keep_coming_leave_room_for_the_rest(jobs: Jobs) -> None:
    waiting = {await submit(jobs, "patient", LOW), await submit(jobs, "patient", NORMAL)}
    for _ in range(10):
        await submit(jobs, "urgent", HIGH)
    for _ in range(100):
        await submit(jobs, "urgent", HIGH)
        waiting.discard((await serve_one(jobs)).id)
    assert not waiting


async def test_affinity_never_puts_a_lower_priority_first(jobs: Jobs) -> None:
    await submit(jobs, priority=NORMAL, kind="hot/0.0.0")
    urgent = await submit(jobs, priority=HIGH, kind="cold/0.0.0")
    assert (await serve_one(jobs, "hot/0.0.0")).id == urgent


async def test_a_cold_model_waits_no_longer_than_patience_once_it_is_next(jobs: Jobs) -> None:
    cold = await submit(jobs, kind="cold/0.0.0")
    for _ in range(50):
        await submit(jobs, kind="hot/0.0.0")
    loop = asyncio.get_running_loop()
    began, served = loop.time(), 0
    while (await serve_one(jobs, "hot/0.0.0", patience_s=0.2)).id != cold:
        await asyncio.sleep(0.01)
        served += 1
    assert 0.15 < loop.time() - began < 0.6
    assert served > 1


async def test_long_waits_do_not_end_affinity(jobs: Jobs) -> None:
    """Patience counts from when the next job in line is passed over: a long line is no reason to load in turns."""
    for _ in range(5):
        await submit(jobs, kind="cold/0.0.0")
        await submit(jobs, kind="hot/0.0.0")
    await asyncio.sleep(0.3)
    served = [(await serve_one(jobs, "hot/0.0.0", patience_s=0.25)).request.model for _ in range(4)]
    assert served == ["hot"] * 4


async def test_each_tenant_has_a_bound_of_its_own(jobs: Jobs) -> None:
    bounds = Bounds(5, 3)
    results = await asyncio.gather(*(submit(jobs, "a", bounds=bounds) for _ in range(10)), return_exceptions=True)
    refused = [result for result in results if isinstance(result, QueueFullError)]
    assert len(refused) == 7
    assert refused[0].facts["subject"] == "tenant:a"
    assert refused[0].facts["max_queued_jobs"] == "3"
    for _ in range(2):
        await submit(jobs, "b", bounds=bounds)
    with pytest.raises(QueueFullError) as full:
        await submit(jobs, "c", bounds=bounds)
    assert (full.value.facts["subject"], full.value.facts["max_queued_jobs"]) == ("queue", "5")
    assert (await take(jobs)).job.tenant == "a"
    await submit(jobs, "a", bounds=bounds)


async def test_what_is_kept_of_a_tenant_goes_with_its_last_waiting_job(
    jobs: Jobs, store: tuple[Jobs, aioredis.Redis]
) -> None:
    client = store[1]
    cancelled = [await submit(jobs, "a", priority) for priority in (LOW, NORMAL, HIGH)]
    for job_id in cancelled:
        await jobs.cancel(job_id)
        await jobs.cancel(job_id)
    await submit(jobs, "b")
    got = await take(jobs)
    assert not await client.exists("darkroom:waiting", "darkroom:flows")
    await jobs.requeue(got, Setback.RELEASED, 1, FAILED)
    assert await client.hgetall("darkroom:waiting") == {b"b": b"1"}
    await jobs.fail(await take(jobs), FAILED)
    assert not await client.exists("darkroom:waiting", "darkroom:flows")


@pytest.mark.parametrize("name", ["", "A", "a b", "a" * 64, "-a", "ä", "a\n"])
def test_a_tenants_name_is_checked(name: str) -> None:
    with pytest.raises(InvalidRequestError, match="x-darkroom-tenant"):
        find_tenant([("x-darkroom-tenant", name)])


def test_without_a_name_the_tenant_is_the_default_one() -> None:
    assert find_tenant([("user-agent", "x")]) == "default"
    assert find_tenant([("x-darkroom-tenant", "acme.eu-1")]) == "acme.eu-1"
