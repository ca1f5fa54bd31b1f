"""The scripts, on a real server: fencing, one terminal state, idempotency, leases by the server's clock."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import redis.asyncio as aioredis

from darkroom.rpc.errors import (
    DeadlineError,
    NotDeadError,
    QueueFullError,
    RequestIdReusedError,
    StaleTokenError,
    StoreUnavailableError,
    UnknownJobError,
    WorkerHeldError,
)
from darkroom.v1 import error_pb2, generation_pb2, job_pb2
from services.gateway.store.connection import Durability, connect, evicts, find_durability
from services.gateway.store.jobs import Jobs
from services.gateway.store.record import Claim
from services.gateway.store.scripts import Scripts
from services.gateway.store.vocabulary import LATE, Bounds, Setback, Wish
from tests.fakes.redis import open_jobs, serve_redis

pytestmark = pytest.mark.redis
FAILED = error_pb2.Error(code=9, reason="POISON", message="enough")
OUTPUT = generation_pb2.Output(content_type="image/png", size_bytes=3)
BOUNDS, ONE, NONE = Bounds(100, 100), Bounds(1, 1), Bounds(0, 0)
STATES = job_pb2.JobState.values()[1:]


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[tuple[Jobs, aioredis.Redis]]:
    async with serve_redis(tmp_path) as server, open_jobs(server.url) as opened:
        yield opened


@pytest.fixture
def jobs(store: tuple[Jobs, aioredis.Redis]) -> Jobs:
    return store[0]


@pytest.fixture
def client(store: tuple[Jobs, aioredis.Redis]) -> aioredis.Redis:
    return store[1]


async def submit(jobs: Jobs, kind: str = "tiny/0.0.0", request_id: str = "", digest: str = "d") -> job_pb2.Job:
    request = generation_pb2.GenerationRequest(model=kind.partition("/")[0], prompt="x", seed=7)
    return await jobs.submit(request, kind, request_id, digest, BOUNDS)


async def claim(jobs: Jobs, worker: str = "w", kind: str = "", elsewhere: tuple[str, ...] = ()) -> Claim:
    got = await jobs.claim(worker, kind, elsewhere, patience_s=10, lease_s=10)
    assert isinstance(got, Claim)
    return got


async def test_a_claim_takes_job_and_worker_together_and_tokens_rise(jobs: Jobs) -> None:
    first, second = await submit(jobs), await submit(jobs)
    one = await claim(jobs)
    assert (one.job.id, one.job.state, one.job.attempts) == (first.id, job_pb2.JOB_STATE_RUNNING, 1)
    assert await jobs.claim("w", "", [], 10, 10) == float("inf")
    two = await claim(jobs, "v")
    assert two.job.id == second.id
    assert two.token.counter > one.token.counter
    assert two.token.store_id == one.token.store_id != ""


async def test_a_hundred_claims_at_once_give_every_job_once(jobs: Jobs) -> None:
    ids = {(await submit(jobs)).id for _ in range(20)}
    got = await asyncio.gather(*(jobs.claim(f"w{number}", "", [], 10, 10) for number in range(100)))
    claims = [one for one in got if isinstance(one, Claim)]
    assert {one.job.id for one in claims} == ids
    assert len({one.token.counter for one in claims}) == len(claims) == 20


async def test_only_the_newest_token_writes(jobs: Jobs, client: aioredis.Redis) -> None:
    job = await submit(jobs)
    old = await claim(jobs)
    await client.zadd("darkroom:leases", {job.id: 0})
    new = await jobs.adopt(10)
    assert new is not None
    assert (new.job.id, new.run_id, new.job.attempts) == (job.id, old.run_id, 1)
    progress = generation_pb2.Progress(fraction=0.5)
    for write in (
        jobs.renew(old, 10),
        jobs.append(old, [(1, progress)]),
        jobs.begin_run(old, "x"),
        jobs.succeed(old, OUTPUT),
        jobs.fail(old, FAILED),
        jobs.requeue(old, Setback.LOST, 1, FAILED),
    ):
        with pytest.raises(StaleTokenError):
            await write
    assert (await jobs.get(job.id)).state == job_pb2.JOB_STATE_RUNNING
    await jobs.succeed(new, OUTPUT)
    assert (await jobs.get(job.id)).output == OUTPUT


async def test_fifty_writers_end_a_job_once(jobs: Jobs, client: aioredis.Redis) -> None:
    job = await submit(jobs)
    got = await claim(jobs)
    endings = [jobs.succeed(got, OUTPUT) if number % 2 else jobs.fail(got, FAILED) for number in range(50)]
    await asyncio.gather(*endings, return_exceptions=True)
    assert await client.hget(f"darkroom:job:{job.id}", "terminal_writes") == b"1"
    entries = await client.xrange(f"darkroom:events:{job.id}")
    assert [fields[b"state"] for _, fields in entries if b"state" in fields] in ([b"1", b"2", b"3"], [b"1", b"2", b"4"])
    listed = [len(await jobs.newest([state], "", 10)) for state in STATES]
    assert sum(listed) == 1


async def test_an_end_brings_the_progress_that_was_not_kept_yet_before_it_and_once(
    jobs: Jobs, client: aioredis.Redis
) -> None:
    job = await submit(jobs)
    got = await claim(jobs)
    steps = [(number, generation_pb2.Progress(completed=number)) for number in (1, 2, 3)]
    await jobs.append(got, steps[:2])
    for _ in range(2):
        await jobs.succeed(got, OUTPUT, steps)
    entries = [fields for _, fields in await client.xrange(f"darkroom:events:{job.id}")]
    told = [generation_pb2.Progress.FromString(fields[b"progress"]) for fields in entries if b"progress" in fields]
    assert [progress.completed for progress in told] == [1, 2, 3]
    assert entries[-1][b"state"] == b"3"


async def test_repeating_the_winning_end_is_no_error(jobs: Jobs) -> None:
    await submit(jobs)
    got = await claim(jobs)
    await jobs.succeed(got, OUTPUT)
    await jobs.succeed(got, OUTPUT)


async def test_fifty_submits_with_one_id_make_one_job(jobs: Jobs, client: aioredis.Redis) -> None:
    request_id = str(uuid.uuid4())
    made = await asyncio.gather(*(submit(jobs, request_id=request_id) for _ in range(50)))
    assert len({job.id for job in made}) == 1
    assert await client.zcard("darkroom:queue") == 1
    with pytest.raises(RequestIdReusedError):
        await submit(jobs, request_id=request_id, digest="other")


async def test_a_repeated_submit_finds_its_job_even_when_the_queue_is_full(jobs: Jobs) -> None:
    request = generation_pb2.GenerationRequest(model="tiny")
    first = await jobs.submit(request, "k", str(uuid.UUID(int=1)), "d", ONE)
    with pytest.raises(QueueFullError) as full:
        await jobs.submit(request, "k", "", "d", ONE)
    assert full.value.facts["max_queued_jobs"] == "1"
    assert (await jobs.submit(request, "k", str(uuid.UUID(int=1)), "d", ONE)).id == first.id


async def test_a_lease_runs_out_by_the_servers_clock(jobs: Jobs) -> None:
    await submit(jobs)
    got = await jobs.claim("w", "", [], 10, 0.3)
    assert isinstance(got, Claim)
    assert await jobs.adopt(10) is None
    await asyncio.sleep(0.2)
    await jobs.renew(got, 0.3)
    await asyncio.sleep(0.2)
    assert await jobs.adopt(10) is None
    await asyncio.sleep(0.2)
    adopted = await jobs.adopt(10)
    assert adopted is not None
    assert adopted.is_adopted


async def test_an_adoption_of_what_is_late_takes_nothing_else(jobs: Jobs, client: aioredis.Redis) -> None:
    await submit(jobs)
    due = await submit_within(jobs, 0.1)
    first, second = await claim(jobs, "w0"), await claim(jobs, "w1")
    await client.zadd("darkroom:leases", {first.job.id: 0, second.job.id: 0})
    assert await jobs.adopt(10, is_late_only=True) is None
    await asyncio.sleep(0.15)
    adopted = await jobs.adopt(10, is_late_only=True)
    assert adopted is not None
    assert (adopted.job.id, adopted.left_s) == (due.id, 0)
    assert await jobs.adopt(10, is_late_only=True) is None
    assert (await jobs.adopt(10)).job.id == first.job.id  # type: ignore[union-attr]


async def test_an_adoption_happens_once(jobs: Jobs, client: aioredis.Redis) -> None:
    job = await submit(jobs)
    await claim(jobs)
    await client.zadd("darkroom:leases", {job.id: 0})
    got = await asyncio.gather(*(jobs.adopt(10) for _ in range(20)))
    assert len([one for one in got if one is not None]) == 1


async def test_progress_of_a_run_is_kept_once(jobs: Jobs, client: aioredis.Redis) -> None:
    job = await submit(jobs)
    got = await claim(jobs)
    steps = [(number, generation_pb2.Progress(completed=number)) for number in range(1, 6)]
    await jobs.append(got, steps[:3])
    await jobs.append(got, steps[1:])
    await jobs.append(got, [(0, generation_pb2.Progress(detail="ours"))])
    entries = await client.xrange(f"darkroom:events:{job.id}")
    told = [generation_pb2.Progress.FromString(fields[b"progress"]) for _, fields in entries if b"progress" in fields]
    assert [progress.completed for progress in told] == [1, 2, 3, 4, 5, 0]
    await client.zadd("darkroom:leases", {job.id: 0})
    adopted = await jobs.adopt(10)
    assert adopted is not None
    assert adopted.run_sequence == 5


async def test_setbacks_are_charged_by_their_kind(jobs: Jobs) -> None:
    job = await submit(jobs)
    for _ in range(3):
        await jobs.requeue(await claim(jobs), Setback.RELEASED, 1, FAILED)
    assert (await jobs.get(job.id)).attempts == 0
    for _ in range(4):
        await jobs.requeue(await claim(jobs), Setback.LOST, 16, FAILED)
    await jobs.requeue(await claim(jobs), Setback.DEATH, 2, FAILED)
    got = await jobs.get(job.id)
    assert (got.state, got.attempts) == (job_pb2.JOB_STATE_QUEUED, 5)
    await jobs.requeue(await claim(jobs), Setback.DEATH, 2, FAILED)
    got = await jobs.get(job.id)
    assert (got.state, got.attempts, got.error.reason) == (job_pb2.JOB_STATE_FAILED, 6, "POISON")


async def a_dead_job(jobs: Jobs) -> job_pb2.Job:
    job = await submit(jobs)
    cause = error_pb2.Error(code=14, reason="ENGINE_DIED", message="by signal 9", metadata={"signal": "SIGKILL"})
    for number in range(2):
        await jobs.requeue(await claim(jobs, f"w{number}"), Setback.DEATH, 2, FAILED, cause)
    return await jobs.get(job.id)


async def test_a_dead_job_is_listed_with_its_evidence_and_re_driven_once(jobs: Jobs, client: aioredis.Redis) -> None:
    bystander = await submit(jobs)
    await jobs.requeue(await claim(jobs), Setback.LOST, 16, FAILED)
    await jobs.fail(await claim(jobs), FAILED)
    dead = await a_dead_job(jobs)
    assert [job.id for job in await jobs.dead("", 10)] == [dead.id]
    assert [
        (attempt.attempt, attempt.worker_id, attempt.error.metadata["signal"]) for attempt in dead.failed_attempts
    ] == [(1, "w0", "SIGKILL"), (2, "w1", "SIGKILL")]
    assert dead.failed_attempts[0].happened_at.seconds > 0
    assert [attempt.error.reason for attempt in (await jobs.get(bystander.id)).failed_attempts] == ["POISON"]
    made = await asyncio.gather(*(jobs.redrive(dead.id, "", BOUNDS) for _ in range(20)))
    assert len({job.id for job in made}) == 1
    assert (made[0].request, made[0].redriven_from, made[0].attempts) == (dead.request, dead.id, 0)
    after = await jobs.get(dead.id)
    assert (after.state, after.error, after.redriven_as) == (dead.state, dead.error, made[0].id)
    assert await jobs.dead("", 10) == []
    assert (await claim(jobs)).job.id == made[0].id
    for wrong in (bystander.id, made[0].id):
        with pytest.raises(NotDeadError):
            await jobs.redrive(wrong, "", BOUNDS)
    with pytest.raises(UnknownJobError):
        await jobs.redrive("0" * 24, "", BOUNDS)
    assert await client.hget(f"darkroom:job:{dead.id}", "terminal_writes") == b"1"


async def test_a_re_drive_keeps_to_its_request_id_and_to_the_queues_bound(jobs: Jobs) -> None:
    dead, other = await a_dead_job(jobs), await a_dead_job(jobs)
    request_id = str(uuid.UUID(int=5))
    with pytest.raises(QueueFullError):
        await jobs.redrive(dead.id, request_id, NONE)
    made = await jobs.redrive(dead.id, request_id, BOUNDS)
    assert (await jobs.redrive(dead.id, request_id, NONE)).id == made.id
    with pytest.raises(RequestIdReusedError):
        await jobs.redrive(other.id, request_id, BOUNDS)
    with pytest.raises(RequestIdReusedError):
        await submit(jobs, request_id=request_id)


async def test_a_dead_job_is_forgotten_like_any_other(jobs: Jobs, client: aioredis.Redis) -> None:
    await a_dead_job(jobs)
    await asyncio.sleep(0.02)
    assert len(await jobs.expire(0.01, 10)) == 1
    assert not await client.exists("darkroom:dead")


async def test_a_job_that_goes_back_keeps_its_place_and_any_worker_takes_it(jobs: Jobs) -> None:
    first = await submit(jobs)
    await submit(jobs)
    got = await claim(jobs)
    await jobs.requeue(got, Setback.RELEASED, 1, FAILED)
    again = await claim(jobs, "other", "another/0.0.0", ("tiny/0.0.0",))
    assert again.job.id == first.id


async def test_cancelling_is_right_in_every_state(jobs: Jobs) -> None:
    queued = await submit(jobs)
    for _ in range(2):
        assert (await jobs.cancel(queued.id)).state == job_pb2.JOB_STATE_CANCELLED
    assert await jobs.claim("w", "", [], 10, 10) == float("inf")
    running = await submit(jobs)
    got = await claim(jobs)
    assert (await jobs.cancel(running.id)).state == job_pb2.JOB_STATE_RUNNING
    assert await jobs.renew(got, 10)
    await jobs.requeue(got, Setback.LOST, 16, FAILED)
    assert (await jobs.get(running.id)).state == job_pb2.JOB_STATE_CANCELLED
    done = await submit(jobs)
    await jobs.succeed(await claim(jobs), OUTPUT)
    assert (await jobs.cancel(done.id)).state == job_pb2.JOB_STATE_SUCCEEDED
    for unknown in ("0" * 24, "x", ""):
        with pytest.raises(UnknownJobError):
            await jobs.cancel(unknown)


async def test_the_loaded_model_goes_first_and_nobody_is_overtaken_beyond_patience(jobs: Jobs) -> None:
    cold = await submit(jobs, "cold/0.0.0")
    hot = [await submit(jobs, "hot/0.0.0") for _ in range(2)]
    got = await jobs.claim("w", "hot/0.0.0", [], 10, 10)
    assert isinstance(got, Claim)
    assert got.job.id == hot[0].id
    await jobs.succeed(got, OUTPUT)
    await asyncio.sleep(0.05)
    got = await jobs.claim("w", "hot/0.0.0", [], 0.04, 10)
    assert isinstance(got, Claim)
    assert got.job.id == cold.id


async def test_a_job_waits_for_the_worker_that_has_its_model_but_not_beyond_patience(jobs: Jobs) -> None:
    job = await submit(jobs, "hot/0.0.0")
    wait_s = await jobs.claim("w", "", ["hot/0.0.0"], 0.2, 10)
    assert isinstance(wait_s, float)
    assert 0 < wait_s <= 0.2
    await asyncio.sleep(0.25)
    got = await jobs.claim("w", "", ["hot/0.0.0"], 0.2, 10)
    assert isinstance(got, Claim)
    assert got.job.id == job.id


def terms_of(deadline_s: float) -> job_pb2.JobTerms:
    terms = job_pb2.JobTerms()
    terms.deadline.FromMilliseconds(int(deadline_s * 1000))
    return terms


async def submit_within(jobs: Jobs, deadline_s: float) -> job_pb2.Job:
    request = generation_pb2.GenerationRequest(model="tiny")
    return await jobs.submit(request, "tiny/0.0.0", "", "d", BOUNDS, terms_of(deadline_s))


async def test_a_claim_ends_jobs_past_their_deadlines_and_takes_the_next_one(jobs: Jobs) -> None:
    late = [await submit_within(jobs, 0.03) for _ in range(3)]
    timely = await submit_within(jobs, 60)
    await asyncio.sleep(0.05)
    got = await claim(jobs)
    assert got.job.id == timely.id
    assert got.left_s is not None
    assert 58 < got.left_s < 60.1
    for job in late:
        ended = await jobs.get(job.id)
        assert (ended.state, ended.error.reason) == (job_pb2.JOB_STATE_FAILED, "DEADLINE_EXCEEDED")


async def test_a_running_job_hears_of_its_deadline_and_can_not_succeed_after_it(
    jobs: Jobs, client: aioredis.Redis
) -> None:
    job = await submit_within(jobs, 0.1)
    got = await claim(jobs)
    assert await jobs.renew(got, 10) is Wish.GO_ON
    assert await jobs.end_overdue() < 0.1
    await asyncio.sleep(0.15)
    assert await jobs.renew(got, 10) is Wish.DEADLINE
    assert await jobs.end_overdue() == float("inf")
    with pytest.raises(DeadlineError):
        await jobs.succeed(got, OUTPUT)
    assert (await jobs.get(job.id)).state == job_pb2.JOB_STATE_RUNNING
    await jobs.cancel(job.id)
    assert await jobs.renew(got, 10) is Wish.CANCEL
    await jobs.fail(got, LATE)
    assert (await jobs.get(job.id)).error.reason == "DEADLINE_EXCEEDED"
    assert not await client.exists("darkroom:deadlines")


async def test_a_job_past_its_deadline_does_not_go_back_to_the_queue(jobs: Jobs) -> None:
    job = await submit_within(jobs, 0.05)
    got = await claim(jobs)
    await asyncio.sleep(0.07)
    await jobs.requeue(got, Setback.LOST, 16, FAILED)
    assert (await jobs.get(job.id)).error.reason == "DEADLINE_EXCEEDED"


async def test_an_operator_holds_a_worker_like_a_job_does(jobs: Jobs) -> None:
    token = await jobs.hold_worker("w", 10)
    await submit(jobs)
    assert await jobs.claim("w", "", [], 10, 10) == float("inf")
    with pytest.raises(WorkerHeldError, match="operator"):
        await jobs.hold_worker("w", 10)
    await jobs.keep_worker("w", token, 0)
    got = await claim(jobs)
    assert got.token.counter > token.counter
    with pytest.raises(WorkerHeldError, match=got.job.id):
        await jobs.hold_worker("w", 10)


async def test_ended_jobs_are_forgotten_with_all_their_keys(jobs: Jobs, client: aioredis.Redis) -> None:
    job = await submit(jobs, request_id=str(uuid.UUID(int=1)))
    await jobs.succeed(await claim(jobs), OUTPUT)
    waiting = await submit(jobs)
    assert await jobs.expire(3600, 100) == []
    await asyncio.sleep(0.02)
    assert await jobs.expire(0.01, 100) == [job.id]
    left = {key.decode() for key in await client.keys("*")}
    assert not {key for key in left if job.id in key}
    assert "darkroom:request:" + str(uuid.UUID(int=1)) not in left
    assert (await jobs.get(waiting.id)).state == job_pb2.JOB_STATE_QUEUED


async def test_the_oldest_ended_jobs_go_while_outputs_take_too_much_room(jobs: Jobs, client: aioredis.Redis) -> None:
    ended = []
    for _ in range(5):
        await submit(jobs)
        got = await claim(jobs)
        await jobs.succeed(got, generation_pb2.Output(size_bytes=100))
        ended.append(got.job.id)
        await asyncio.sleep(0.002)
    running = await submit(jobs)
    await claim(jobs)
    assert await client.get("darkroom:output_bytes") == b"500"
    assert await jobs.expire(3600, 100, 500, 0) == []
    assert await jobs.expire(3600, 100, 250, 60) == [], "what has just ended is spared"
    assert await jobs.expire(3600, 100, 250, 0) == ended[:3]
    assert await jobs.expire(3600, 100, 1, 0) == ended[3:]
    assert await client.get("darkroom:output_bytes") == b"0"
    assert (await jobs.get(running.id)).state == job_pb2.JOB_STATE_RUNNING


async def test_a_file_is_an_orphan_unless_its_job_names_it_or_is_about_to(jobs: Jobs, client: aioredis.Redis) -> None:
    await jobs.register_outputs("here")
    done, failed, running, queued = [await submit(jobs) for _ in range(4)]
    claims = [await claim(jobs, f"w{number}") for number in range(3)]
    await jobs.succeed(claims[0], OUTPUT)
    await jobs.fail(claims[1], FAILED)
    counters = [got.token.counter for got in claims]
    named = [(done.id, counters[0]), (running.id, counters[2])]
    unknown = f"{int(done.id[:12], 16):012x}" + "0" * 12
    foreign = "0" * 24
    orphans = [(done.id, 99), (failed.id, counters[1]), (running.id, 1), (queued.id, 1), (unknown, 7)]
    assert await jobs.orphans("here", [*named, *orphans, (foreign, 1)]) == orphans
    assert await jobs.orphans("elsewhere", orphans) == []
    await client.delete("darkroom:since")
    assert await jobs.orphans("here", orphans) == []


async def test_every_key_is_in_the_table(jobs: Jobs, client: aioredis.Redis) -> None:
    import services.gateway.store.keys as keys

    await submit(jobs, request_id=str(uuid.UUID(int=1)))
    await jobs.register_outputs("here")
    running = await claim(jobs)
    await submit_within(jobs, 60)
    await submit(jobs)
    await jobs.hold_worker("v", 10)
    done = await submit(jobs)
    await jobs.cancel(done.id)
    await client.zadd(keys.LEASES, {running.job.id: 0})
    assert await jobs.adopt(10) is not None
    assert keys.__doc__ is not None
    for key in await client.keys("*"):
        stem = ":".join(key.decode().split(":")[:2])
        assert f"| {stem} " in keys.__doc__ or f"| {stem}:" in keys.__doc__, key


async def test_a_server_that_would_lose_jobs_is_refused_unless_it_is_trusted(tmp_path: Path) -> None:
    async with serve_redis(tmp_path, "--appendonly", "no") as server:
        client = connect(server.url)
        with pytest.raises(StoreUnavailableError, match="appendfsync always"):
            await find_durability(client, is_trusted=False)
        assert await find_durability(client, is_trusted=True) is Durability.UNKNOWN
        await client.config_set("maxmemory", "100mb")
        await client.config_set("maxmemory-policy", "allkeys-lru")
        assert await evicts(client)
        await client.aclose()


async def test_writes_wait_for_the_disk_where_the_server_can_be_asked_to(tmp_path: Path) -> None:
    async with serve_redis(tmp_path, "--appendfsync", "everysec") as server:
        client = connect(server.url)
        try:
            durability = await find_durability(client, is_trusted=False)
        except StoreUnavailableError:
            version = (await client.info("server"))["redis_version"]
            assert version.startswith("7.0"), "WAITAOF came with 7.2"
            return
        finally:
            await client.aclose()
        assert durability is Durability.ON_REQUEST
        client = connect(server.url)
        jobs = Jobs(client, Scripts(client, durability))
        job = await submit(jobs)
        await server.kill()
        await client.aclose()
        await server.start("--appendfsync", "everysec")
        client = connect(server.url)
        assert (await Jobs(client, Scripts(client, durability)).get(job.id)).id == job.id
        await client.aclose()


async def test_a_dead_server_is_told_at_once(tmp_path: Path) -> None:
    async with serve_redis(tmp_path) as server, open_jobs(server.url) as (jobs, _):
        job = await submit(jobs)
        await server.kill()
        async with asyncio.timeout(1):
            with pytest.raises(StoreUnavailableError):
                await jobs.get(job.id)
        await server.start()
        assert (await jobs.get(job.id)).id == job.id
        assert (await claim(jobs)).job.id == job.id


async def test_acknowledged_submits_survive_kills_at_random_moments(tmp_path: Path) -> None:
    async with serve_redis(tmp_path) as server, open_jobs(server.url) as (jobs, _):
        acknowledged: list[str] = []

        async def submit_for_ever() -> None:
            while True:
                try:
                    acknowledged.append((await submit(jobs)).id)
                except StoreUnavailableError:
                    await asyncio.sleep(0.01)
                except QueueFullError:
                    return

        for pause_s in (0.02, 0.035, 0.05):
            writer = asyncio.create_task(submit_for_ever())
            await asyncio.sleep(pause_s)
            await server.kill()
            writer.cancel()
            await asyncio.gather(writer, return_exceptions=True)
            await server.start()
        assert acknowledged
        for job_id in acknowledged:
            assert (await jobs.get(job_id)).state == job_pb2.JOB_STATE_QUEUED
