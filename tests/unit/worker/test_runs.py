"""What a run keeps, for whom, and for how long."""

from __future__ import annotations

import asyncio
import time

from darkroom.rpc.errors import EngineDiedError
from darkroom.v1 import generation_pb2, worker_pb2
from services.worker.runs import PARCEL_BYTES, REMEMBERED_JOBS, Run, Shelf


def run_of(*job_ids: str, run_id: str = "run") -> Run:
    return Run(run_id, "model", [worker_pb2.RunItem(job_id=job_id) for job_id in job_ids])


def step(job_id: str, number: int = 1) -> worker_pb2.RunEvent:
    return worker_pb2.RunEvent(job_id=job_id, progress=generation_pb2.Progress(completed=number))


def finish(run: Run, job_id: str, data: bytes = b"file") -> None:
    run.record(worker_pb2.RunEvent(job_id=job_id, output=generation_pb2.Output(size_bytes=len(data))))
    half = len(data) // 2
    for offset, part in ((0, data[:half]), (half, data[half:])):
        run.record(worker_pb2.RunEvent(job_id=job_id, chunk=worker_pb2.OutputChunk(offset=offset, data=part)))


async def events_of(run: Run, after: int = 0) -> list[worker_pb2.RunEvent]:
    return [event async for events in run.follow(after, 1.0) for event in events]


def test_what_is_being_made_is_what_has_begun_and_not_ended() -> None:
    run = run_of("a", "b", "c")
    assert run.being_made == ["a", "b", "c"], "nobody knows yet which ones the engine has"
    run.record(step("a"))
    run.record(step("b"))
    assert run.being_made == ["a", "b"]
    finish(run, "a")
    assert run.being_made == ["b"]


async def test_events_are_numbered_from_one_and_replayed_from_any_point() -> None:
    run = run_of("a")
    run.record(step("a"))
    finish(run, "a")
    assert [event.sequence for event in await events_of(run)] == [1, 2, 3, 4]
    assert [event.sequence for event in await events_of(run, 2)] == [3, 4]
    assert await events_of(run, 99) == []


async def test_a_run_is_over_when_every_item_has_its_whole_file_or_an_error() -> None:
    run = run_of("a", "b")
    finish(run, "a")
    assert run.has_ended("a")
    assert not run.is_over
    run.fail(EngineDiedError("gone"))
    assert run.is_over
    assert [event.error.reason for event in await events_of(run) if event.HasField("error")] == ["ENGINE_DIED"]


async def test_an_item_ends_once_and_what_comes_later_is_dropped() -> None:
    run = run_of("a", "b")
    run.fail(EngineDiedError("gone"), ["a"])
    run.record(step("a"))
    run.fail(EngineDiedError("again"))
    assert [event.job_id for event in await events_of(run)] == ["a", "b"]


async def test_followers_get_events_as_they_come_and_beats_between() -> None:
    run = run_of("a")
    seen: list[worker_pb2.RunEvent] = []

    async def follow() -> None:
        async for events in run.follow(0, 0.02):
            seen.extend(events)

    follower = asyncio.create_task(follow())
    run.record(step("a"))
    await asyncio.sleep(0.1)
    assert run.is_followed
    finish(run, "a")
    await follower
    kinds = [event.WhichOneof("event") for event in seen]
    assert kinds[0] == "progress"
    assert kinds[-3:] == ["output", "chunk", "chunk"]
    beats = [event for event in seen if event.HasField("heartbeat")]
    assert len(beats) >= 2
    assert {beat.sequence for beat in beats} == {1}
    assert not run.is_followed


async def test_progress_waits_for_company_and_goes_with_whatever_can_not_wait() -> None:
    run, seen = run_of("a"), list[list[int]]()

    async def follow() -> None:
        async for events in run.follow(0, 60.0, pause_s=60.0):
            seen.append([event.sequence for event in events])

    follower = asyncio.create_task(follow())
    for number in range(3):
        run.record(step("a", number))
        await asyncio.sleep(0.02)
    assert seen == [[1]], "the first one goes at once"
    finish(run, "a")
    await follower
    assert seen == [[1], [2, 3, 4, 5, 6]]


async def test_progress_waits_no_longer_than_the_pause() -> None:
    run = run_of("a")
    events = run.follow(0, 60.0, pause_s=0.2)
    run.record(step("a"))
    assert len(await anext(events)) == 1
    began_at = time.monotonic()
    run.record(step("a", 2))
    run.record(step("a", 3))
    assert [event.sequence for event in await anext(events)] == [2, 3]
    assert 0.15 <= time.monotonic() - began_at < 5.0
    await events.aclose()


async def test_large_files_come_in_several_parcels() -> None:
    run = run_of("a", "b")
    for job_id in ("a", "b"):
        finish(run, job_id, bytes(2 * PARCEL_BYTES))
    parcels = [events async for events in run.follow(0, 1.0)]
    assert [[event.sequence for event in events] for events in parcels] == [[1, 2], [3], [4, 5], [6]]


async def test_acknowledging_frees_the_file_and_keeps_the_numbers() -> None:
    run = run_of("a", "b")
    finish(run, "a", b"12345678")
    finish(run, "b", b"1234")
    assert run.kept_bytes == 12
    run.acknowledge("a")
    assert run.kept_bytes == 4
    assert not run.is_settled
    assert [event.sequence for event in await events_of(run)] == [1, 4, 5, 6]
    run.acknowledge("b")
    assert run.is_settled


def test_a_shelf_forgets_runs_but_not_the_names_of_their_items() -> None:
    shelf, run = Shelf(60, 1000), run_of("a")
    shelf.add(run)
    assert shelf.find("run") is shelf.find_by_job("a") is run
    assert not shelf.had("a")
    shelf.drop(run)
    assert shelf.find("run") is shelf.find_by_job("a") is None
    assert shelf.had("a")
    for number in range(REMEMBERED_JOBS):
        shelf.drop(run_of(f"job-{number}"))
    assert not shelf.had("a")


def test_a_run_that_nobody_follows_is_unclaimed_after_its_time() -> None:
    shelf, run = Shelf(60, 1000), run_of("a")
    shelf.add(run)
    assert shelf.unclaimed(time.monotonic() + 59) == []
    assert shelf.unclaimed(time.monotonic() + 61) == [run]


def test_the_oldest_finished_outputs_go_first_when_there_is_too_much() -> None:
    shelf, runs = Shelf(60, 10), [run_of(name, run_id=name) for name in "abc"]
    for run in runs:
        shelf.add(run)
        finish(run, run.run_id, b"12345678")
    assert [run.run_id for run in shelf.unclaimed(time.monotonic())] == ["a", "b"]
