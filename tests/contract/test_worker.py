"""The worker's contract, driven over gRPC against a real server with the rehearsal engine."""

from __future__ import annotations

import asyncio
import hashlib
import os
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import psutil
import pytest
import pytest_asyncio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from darkroom.rpc.channels import open_channel
from darkroom.rpc.errors import (
    DarkroomError,
    EngineDiedError,
    EngineHungError,
    NotLoadedError,
    OutOfMemoryError,
    PlanRefusedError,
    SourceRefusedError,
    StaleTokenError,
    UnknownJobError,
    WorkerHeldError,
)
from darkroom.rpc.status import from_rpc_error
from darkroom.v1 import device_pb2, plan_pb2, worker_pb2
from darkroom.v1 import worker_service_pb2 as messages
from tests.engines.worker_server import (
    WorkerServer,
    error_of,
    file_of,
    item,
    rehearsal_models,
    rehearsal_plan,
    serve_worker,
    token,
)

EMPTY, READY = worker_pb2.WORKER_STATE_EMPTY, worker_pb2.WORKER_STATE_READY
LOADING, GENERATING = worker_pb2.WORKER_STATE_LOADING, worker_pb2.WORKER_STATE_GENERATING
pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture(scope="module")
def models_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return rehearsal_models(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("ledger") / "ledger"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(models_dir: Path, ledger: Path) -> AsyncIterator[WorkerServer]:
    async with serve_worker(DARKROOM_MODELS_DIR=models_dir, REHEARSAL_LEDGER=ledger) as server:
        yield server


@pytest_asyncio.fixture(loop_scope="module")
async def worker(shared: WorkerServer) -> WorkerServer:
    """The module's worker, emptied: a store of its own ends what the test before held."""
    store = os.urandom(4).hex()
    await shared.stub.Unload(messages.UnloadRequest(token=token(1, store)), timeout=10)
    await shared.wait_for(EMPTY)
    return shared


def claim(counter: int = 1) -> worker_pb2.FencingToken:
    return token(counter, "test-" + os.environ["PYTEST_CURRENT_TEST"].split("::")[1].split(" ")[0])


async def failure_of(call: object) -> DarkroomError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call  # type: ignore[misc]
    return from_rpc_error(caught.value)


def ledger_lines(ledger: Path, word: str) -> list[str]:
    return [line for line in ledger.read_text().splitlines() if f" {word} " in line]


async def test_a_loaded_model_makes_a_picture_with_progress_in_order(worker: WorkerServer) -> None:
    loaded = (await worker.load(rehearsal_plan(), claim()))[-1].loaded
    assert loaded.planned_bytes == 2**30
    assert loaded.measured_bytes == 2**30
    assert loaded.load_seconds > 0
    events = await worker.generate("run-1", [item("job-1")], token=claim())
    assert [event.sequence for event in events] == list(range(1, len(events) + 1))
    fractions = [event.progress.fraction for event in events if event.HasField("progress")]
    assert fractions == sorted(fractions)
    output = next(event.output for event in events if event.HasField("output"))
    data = file_of(events, "job-1")
    assert hashlib.sha256(data).hexdigest() == output.sha256
    assert len(data) == output.size_bytes
    assert output.engine_time.ToMilliseconds() > 0


async def test_a_run_re_attaches_at_any_point_and_no_step_is_computed_twice(worker: WorkerServer, ledger: Path) -> None:
    await worker.load(rehearsal_plan(), claim(1))
    request = messages.WorkerServiceGenerateRequest(
        run_id="run-again", token=claim(1), items=[item("job-again", "rehearse: steps of 0.05 s")], model="rehearsal"
    )
    call = worker.stub.Generate(request, timeout=20)
    first = [(await call.read()).event for _ in range(2)]
    call.cancel()
    rest = await worker.generate("run-again", [], token=claim(2), after_sequence=first[-1].sequence)
    assert [event.sequence for event in first + rest] == list(range(1, len(first + rest) + 1))
    everything = await worker.generate("run-again", [], token=claim(3))
    assert file_of(everything, "job-again") == file_of(rest, "job-again") != b""
    assert len([line for line in ledger_lines(ledger, "step") if " job-again " in line]) == 4
    assert isinstance(await failure_of(worker.generate("run-again", [], token=claim(2))), StaleTokenError)


async def test_a_caller_that_takes_more_gets_the_same_events_in_fewer_messages(worker: WorkerServer) -> None:
    await worker.load(rehearsal_plan(), claim())
    request = messages.WorkerServiceGenerateRequest(
        run_id="run-more", token=claim(), items=[item("job-more")], model="rehearsal", takes_more=True
    )
    answers = [answer async for answer in worker.stub.Generate(request, timeout=20)]
    events = [event for answer in answers for event in (answer.event, *answer.more)]
    alone = await worker.generate("run-more", [], token=claim())
    assert events == alone
    assert len(answers) < len(alone)


async def test_a_run_that_must_exist_is_never_begun_anew(worker: WorkerServer, ledger: Path) -> None:
    await worker.load(rehearsal_plan(), claim(1))
    request = messages.WorkerServiceGenerateRequest(
        run_id="run-gone", token=claim(1), items=[item("job-gone")], model="rehearsal", must_exist=True
    )

    async def attach() -> None:
        async for _ in worker.stub.Generate(request, timeout=20):
            pass

    assert isinstance(await failure_of(attach()), NotLoadedError)
    assert not [line for line in ledger_lines(ledger, "step") if " job-gone " in line]


async def test_of_items_made_together_a_dead_engine_names_all_and_blames_none_that_waited(worker: WorkerServer) -> None:
    plan = rehearsal_plan()
    plan.call.max_batch = 2
    await worker.load(plan, claim(1))
    items = [item(f"job-{place}", "rehearse: crash at step 2" if place == 1 else "") for place in range(3)]
    events = await worker.generate("run-crash", items, token=claim(1))
    assert [error_of(events, each.job_id) for each in items] == ["ENGINE_DIED", "ENGINE_DIED", "WORKER_LOST"]
    suspects = [event.error.metadata["suspects"] for event in events if event.error.reason == "ENGINE_DIED"]
    assert suspects == ["2", "2"]


async def test_a_lower_claim_is_stale_and_no_claim_is_refused_while_one_is_held(worker: WorkerServer) -> None:
    await worker.load(rehearsal_plan(), claim(5))
    assert isinstance(await failure_of(worker.load(rehearsal_plan(), claim(4))), StaleTokenError)
    held = await failure_of(worker.load(rehearsal_plan()))
    assert isinstance(held, WorkerHeldError)
    assert held.facts["holder"].endswith("/5")
    assert (await worker.status()).holder.counter == 5


async def test_acknowledging_the_last_item_frees_its_bytes_and_its_holder(worker: WorkerServer) -> None:
    await worker.load(rehearsal_plan(), claim(5))
    await worker.generate("run-ack", [item("job-ack")], token=claim(5))
    assert list((await worker.status()).job_ids) == ["job-ack"]
    stale = messages.AckOutputRequest(job_id="job-ack", token=claim(4))
    assert isinstance(await failure_of(worker.stub.AckOutput(stale, timeout=5)), StaleTokenError)
    for _ in range(2):
        await worker.stub.AckOutput(messages.AckOutputRequest(job_id="job-ack", token=claim(5)), timeout=5)
    status = await worker.status()
    assert not status.job_ids
    assert not status.HasField("holder")
    assert isinstance(await failure_of(worker.load(rehearsal_plan(), claim(4))), StaleTokenError)


async def test_cancelling_stops_at_the_next_step_and_disturbs_no_other_item(worker: WorkerServer, ledger: Path) -> None:
    await worker.load(rehearsal_plan(), claim())
    items = [item("job-long", "rehearse: steps of 0.1 s", steps=50), item("job-after", steps=50)]
    run = asyncio.create_task(worker.generate("run-cancel", items, token=claim()))
    await worker.wait_for(GENERATING)
    await asyncio.sleep(0.25)
    cancelled_at = time.monotonic()
    for _ in range(2):
        await worker.stub.Cancel(messages.CancelRequest(job_id="job-long"), timeout=5)
    events = await run
    assert error_of(events, "job-long") == "CANCELLED"
    assert error_of(events, "job-after") == ""
    assert file_of(events, "job-after")
    assert len([line for line in ledger_lines(ledger, "step") if " job-long " in line]) < 6
    assert time.monotonic() - cancelled_at < 3
    await worker.stub.Cancel(messages.CancelRequest(job_id="job-long"), timeout=5)
    unknown = await failure_of(worker.stub.Cancel(messages.CancelRequest(job_id="nobody"), timeout=5))
    assert isinstance(unknown, UnknownJobError)


async def test_an_engine_that_crashes_is_told_with_its_code_and_the_next_job_works(worker: WorkerServer) -> None:
    await worker.load(rehearsal_plan(), claim())
    events = await worker.generate("run-crash", [item("job-crash", "rehearse: crash at step 2")], token=claim())
    assert error_of(events, "job-crash") == "ENGINE_DIED"
    assert events[-1].error.metadata["exit_code"] == "137"
    status = await worker.status()
    assert status.state == EMPTY
    assert status.last_failure.reason == EngineDiedError.reason
    await worker.load(rehearsal_plan(), claim())
    assert file_of(await worker.generate("run-next", [item("job-next")], token=claim()), "job-next")


async def test_a_segfault_is_told_by_its_signal(worker: WorkerServer) -> None:
    await worker.load(rehearsal_plan(), claim())
    events = await worker.generate("run-fault", [item("job-fault", "rehearse: segfault at step 1")], token=claim())
    assert events[-1].error.metadata["signal"] == "SIGSEGV"


@pytest.mark.parametrize("deed", ["hang", "freeze"])
async def test_a_silent_engine_is_killed_within_its_budget_and_replaced(worker: WorkerServer, deed: str) -> None:
    await worker.load(rehearsal_plan(idle_s=0.5), claim())
    old = (await worker.status()).engine_pid
    began_at = time.monotonic()
    events = await worker.generate(f"run-{deed}", [item(f"job-{deed}", f"rehearse: {deed} at step 2")], token=claim())
    assert time.monotonic() - began_at < 5
    assert error_of(events, f"job-{deed}") == EngineHungError.reason
    assert events[-1].error.metadata["phase"] == "denoising"
    assert not psutil.pid_exists(old)
    await worker.load(rehearsal_plan(), claim())
    assert (await worker.status()).engine_pid not in (0, old)


async def test_a_slow_step_within_its_budget_is_no_hang(worker: WorkerServer) -> None:
    await worker.load(rehearsal_plan(idle_s=2.0), claim())
    slow = item("job-slow", "rehearse: freeze for 1.0 s at step 2")
    assert file_of(await worker.generate("run-slow", [slow], token=claim()), "job-slow")


async def test_status_cancel_unload_and_health_answer_at_once_while_a_step_holds_the_interpreter(
    worker: WorkerServer,
) -> None:
    await worker.load(rehearsal_plan(), claim())
    frozen = item("job-frozen", "rehearse: freeze for 1.5 s at step 2")
    run = asyncio.create_task(worker.generate("run-frozen", [frozen], token=claim()))
    await worker.wait_for(GENERATING)
    await asyncio.sleep(0.1)
    durations = []
    async with open_channel(worker.address) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        calls = [
            lambda: worker.status(),
            lambda: health.Check(health_pb2.HealthCheckRequest(service="darkroom.v1.WorkerService"), timeout=5),
            lambda: worker.stub.Cancel(messages.CancelRequest(job_id="job-frozen"), timeout=5),
            lambda: worker.stub.Unload(messages.UnloadRequest(token=claim()), timeout=5),
            lambda: worker.status(),
        ]
        await health.Check(health_pb2.HealthCheckRequest(), timeout=5)
        for call in calls:
            began_at = time.monotonic()
            answer = await call()
            durations.append(time.monotonic() - began_at)
    assert not run.done()
    assert answer.state == worker_pb2.WORKER_STATE_UNLOADING
    assert max(durations) < 0.1, durations
    assert error_of(await run, "job-frozen") == "CANCELLED"
    await worker.wait_for(EMPTY)


async def test_a_superseding_load_stops_the_run_and_waits_for_it(worker: WorkerServer, ledger: Path) -> None:
    await worker.load(rehearsal_plan(), claim(1))
    long = item("job-superseded", "rehearse: steps of 0.1 s", steps=100)
    run = asyncio.create_task(worker.generate("run-superseded", [long], token=claim(1)))
    await worker.wait_for(GENERATING)
    events = await worker.load(rehearsal_plan("other"), claim(2))
    assert events[-1].loaded.plan.model == "other"
    assert error_of(await run, "job-superseded") == StaleTokenError.reason
    assert not ledger_lines(ledger, "overlap")


async def test_twenty_clients_at_once_never_hold_two_plans(worker: WorkerServer, ledger: Path) -> None:
    async def client(number: int) -> str:
        model = f"model-{number % 3}"
        try:
            if number % 4 == 3:
                await worker.stub.Unload(messages.UnloadRequest(), timeout=30)
            else:
                await worker.load(rehearsal_plan(model, orders="load of 0.1 s"))
                run = [item(f"job-many-{number}", "rehearse: steps of 0.02 s")]
                events = await worker.generate(f"run-many-{number}", run, model=model)
                return error_of(events, f"job-many-{number}")
        except grpc.aio.AioRpcError as failure:
            return from_rpc_error(failure).reason
        return ""

    async with asyncio.timeout(60):
        outcomes = await asyncio.gather(*(client(number) for number in range(20)))
    assert set(outcomes) <= {"", "CANCELLED", "NOT_LOADED"}
    assert not ledger_lines(ledger, "overlap")
    held = 0
    for line in ledger.read_text().splitlines():
        held += {"load": 1, "unload": -1}.get(line.split()[1], 0) if "model-" in line else 0
        assert held <= 1


async def test_the_same_plan_again_joins_the_load_and_costs_nothing_when_ready(
    worker: WorkerServer, ledger: Path
) -> None:
    plan = rehearsal_plan("joined", orders="load of 0.5 s")
    both = await asyncio.gather(worker.load(plan, claim(1)), worker.load(plan, claim(1)))
    assert both[0][-1].loaded == both[1][-1].loaded
    again = await worker.load(plan, claim(2))
    assert [event.WhichOneof("event") for event in again] == ["loaded"]
    assert len([line for line in ledger_lines(ledger, "load") if line.endswith(" joined")]) == 1


async def test_a_dropped_load_stream_does_not_stop_the_load(worker: WorkerServer) -> None:
    plan = rehearsal_plan(orders="load of 0.5 s")
    call = worker.stub.Load(messages.LoadRequest(plan=plan, token=claim()), timeout=10)
    await call.read()
    call.cancel()
    assert (await worker.wait_for(READY)).loaded.plan.model == "rehearsal"


async def test_a_plan_that_the_settled_reading_contradicts_asks_for_another_one(worker: WorkerServer) -> None:
    plan = rehearsal_plan(weight_bytes=15 * 2**30)
    events = await worker.load(plan, claim())
    assert events[-1].replan.device.memory.total_bytes == 16 * 2**30
    assert str(15 * 2**30) in events[-1].replan.reason
    assert (await worker.status()).holder.counter == 1
    assert (await worker.load(plan, claim(), replanned=True))[-1].HasField("loaded")


async def test_a_replanned_load_takes_its_memory_fallback_or_says_what_is_missing(worker: WorkerServer) -> None:
    plan = rehearsal_plan(weight_bytes=40 * 2**30)
    short = await failure_of(worker.load(plan, claim(), replanned=True))
    assert isinstance(short, OutOfMemoryError)
    assert short.facts["needed_bytes"] == str(40 * 2**30)
    plan.fallbacks.add(trigger=plan_pb2.FALLBACK_TRIGGER_OUT_OF_MEMORY, plan=rehearsal_plan(weight_bytes=2**30))
    events = await worker.load(plan, claim(), replanned=True)
    assert events[0].HasField("fallback")
    assert events[-1].loaded.planned_bytes == 2**30


async def test_a_refused_plan_evicts_nothing(worker: WorkerServer) -> None:
    await worker.load(rehearsal_plan(), claim())
    quantised = rehearsal_plan("other")
    quantised.components[0].scheme = device_pb2.SCHEME_FP8
    assert isinstance(await failure_of(worker.load(quantised, claim())), PlanRefusedError)
    elsewhere = rehearsal_plan("other")
    elsewhere.source.path = "/etc"
    assert isinstance(await failure_of(worker.load(elsewhere, claim())), SourceRefusedError)
    assert (await worker.status()).loaded.plan.model == "rehearsal"


async def test_a_load_that_crashes_or_runs_out_of_memory_leaves_the_worker_empty(worker: WorkerServer) -> None:
    crash = rehearsal_plan(orders="crash while loading")
    assert isinstance(await failure_of(worker.load(crash, claim())), EngineDiedError)
    short = rehearsal_plan(orders="out of memory while loading")
    assert isinstance(await failure_of(worker.load(short, claim())), OutOfMemoryError)
    assert (await worker.status()).state == EMPTY
    assert isinstance(await failure_of(worker.generate("r", [item("j")], token=claim())), NotLoadedError)
    assert (await worker.load(rehearsal_plan(), claim()))[-1].HasField("loaded")


async def test_an_item_that_fails_leaves_the_model_and_the_next_picture_as_they_were(worker: WorkerServer) -> None:
    await worker.load(rehearsal_plan(), claim())
    before = file_of(await worker.generate("run-a", [item("job-a")], token=claim()), "job-a")
    events = await worker.generate("run-b", [item("job-b", "rehearse: out of memory at step 2")], token=claim())
    assert error_of(events, "job-b") == OutOfMemoryError.reason
    assert file_of(await worker.generate("run-c", [item("job-c")], token=claim()), "job-c") == before


async def test_an_engine_that_does_not_give_its_memory_back_is_replaced(worker: WorkerServer) -> None:
    await worker.load(rehearsal_plan(), claim())
    pid = (await worker.status()).engine_pid
    await worker.stub.Unload(messages.UnloadRequest(token=claim()), timeout=10)
    assert (await worker.wait_for(EMPTY)).engine_pid == pid
    for following in (rehearsal_plan("other"), None):
        await worker.load(rehearsal_plan(orders="leak when unloaded"), claim())
        holding = (await worker.status()).engine_pid
        if following is not None:
            assert (await worker.load(following, claim()))[-1].loaded.plan.model == "other"
        else:
            await worker.stub.Unload(messages.UnloadRequest(token=claim()), timeout=10)
        async with asyncio.timeout(20):
            while (status := await worker.status()).engine_pid in (0, holding):
                await asyncio.sleep(0.05)
        assert not psutil.pid_exists(holding)
        expected = following.memory.weight_bytes if following is not None else 0
        assert status.device.memory.engine_bytes == expected


async def test_a_claim_of_another_store_ends_what_the_worker_holds(worker: WorkerServer) -> None:
    await worker.load(rehearsal_plan(), claim(9))
    run = asyncio.create_task(
        worker.generate("run-old", [item("job-old", "rehearse: steps of 0.1 s", steps=50)], token=claim(9))
    )
    await worker.wait_for(GENERATING)
    await worker.load(rehearsal_plan(), token(1, "new-" + os.urandom(4).hex()))
    assert error_of(await run, "job-old") == StaleTokenError.reason
    assert not (await worker.status()).job_ids


async def test_streams_beat_while_nothing_happens(models_dir: Path) -> None:
    async with serve_worker(DARKROOM_MODELS_DIR=models_dir, DARKROOM_WORKER_HEARTBEAT_S=0.1) as server:
        await server.load(rehearsal_plan())
        request = messages.WorkerServiceGenerateRequest(
            run_id="r", items=[item("j", "rehearse: hang for 0.5 s at step 2")], model="rehearsal"
        )
        beats = [
            answer.event.heartbeat.idle_seconds
            async for answer in server.stub.Generate(request, timeout=20)
            if answer.event.HasField("heartbeat")
        ]
        assert len(beats) >= 3
        assert beats == sorted(beats)


async def test_a_silent_holder_loses_the_worker_and_unclaimed_runs_are_dropped(models_dir: Path) -> None:
    async with serve_worker(
        DARKROOM_MODELS_DIR=models_dir, DARKROOM_WORKER_HOLD_S=0.3, DARKROOM_WORKER_KEEP_S=0.8
    ) as server:
        await server.load(rehearsal_plan(), token(3))
        await server.generate("run", [item("job")], token=token(3))
        await asyncio.sleep(2.0)
        status = await server.status()
        assert not status.HasField("holder")
        assert not status.job_ids
        assert (await server.load(rehearsal_plan()))[-1].HasField("loaded")
        assert isinstance(await failure_of(server.load(rehearsal_plan(), token(2))), StaleTokenError)


async def test_the_engine_ends_within_a_second_of_its_supervisor_even_while_frozen(models_dir: Path) -> None:
    async with serve_worker(DARKROOM_MODELS_DIR=models_dir) as server:
        await server.load(rehearsal_plan())
        run = asyncio.create_task(server.generate("r", [item("j", "rehearse: freeze at step 1")]))
        pid = (await server.wait_for(GENERATING)).engine_pid
        await asyncio.sleep(0.2)
        server.process.kill()
        killed_at = time.monotonic()
        while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
            assert time.monotonic() - killed_at < 1.0
            await asyncio.sleep(0.01)
        with pytest.raises(grpc.aio.AioRpcError):
            await run


@pytest.mark.parametrize(("steps", "reason"), [(8, ""), (300, "DRAINING")])
async def test_a_drain_lets_a_short_run_finish_and_hands_a_long_one_back(
    models_dir: Path, steps: int, reason: str
) -> None:
    async with serve_worker(DARKROOM_MODELS_DIR=models_dir, DARKROOM_GRACE_S=3) as server:
        await server.load(rehearsal_plan())
        run = asyncio.create_task(server.generate("r", [item("j", "rehearse: steps of 0.1 s", steps=steps)]))
        await server.wait_for(GENERATING)
        server.process.send_signal(signal.SIGTERM)
        await asyncio.sleep(0.2)
        server.process.send_signal(signal.SIGTERM)
        refused = await failure_of(server.load(rehearsal_plan("other")))
        assert refused.reason in ("DRAINING", "UNAVAILABLE")
        events = await run
        assert error_of(events, "j") == reason
        assert await asyncio.wait_for(server.process.wait(), 6) == 0


async def test_the_supervisor_never_imports_torch(worker: WorkerServer) -> None:
    await worker.load(rehearsal_plan(), claim())
    mapped = Path(f"/proc/{worker.process.pid}/maps").read_text()
    assert "libtorch" not in mapped


async def test_health_follows_the_device(models_dir: Path) -> None:
    async with (
        serve_worker(DARKROOM_MODELS_DIR=models_dir, REHEARSAL_START="crash") as server,
        open_channel(server.address) as channel,
    ):
        health = health_pb2_grpc.HealthStub(channel)
        answer = await health.Check(health_pb2.HealthCheckRequest(service="darkroom.v1.WorkerService"), timeout=5)
        assert answer.status == health_pb2.HealthCheckResponse.NOT_SERVING
        status = await server.status()
        assert status.state == worker_pb2.WORKER_STATE_FAILED
        assert status.last_failure.metadata["exit_code"] == "137"
        assert isinstance(await failure_of(server.load(rehearsal_plan())), EngineDiedError)


async def test_a_wedged_idle_engine_turns_readiness_off_until_it_answers_again(models_dir: Path) -> None:
    async with serve_worker(DARKROOM_MODELS_DIR=models_dir) as server, open_channel(server.address) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        request = health_pb2.HealthCheckRequest(service="darkroom.v1.WorkerService")
        pid = (await server.status()).engine_pid
        psutil.Process(pid).suspend()
        stopped_at = time.monotonic()
        began_at = time.monotonic()
        assert (await server.status()).device_age_seconds > 0
        assert time.monotonic() - began_at < 0.1
        while (await health.Check(request, timeout=5)).status == health_pb2.HealthCheckResponse.SERVING:
            assert time.monotonic() - stopped_at < 10
            await asyncio.sleep(0.1)
        psutil.Process(pid).resume()
        while (await health.Check(request, timeout=5)).status != health_pb2.HealthCheckResponse.SERVING:
            assert time.monotonic() - stopped_at < 15
            await asyncio.sleep(0.1)
        assert (await server.status()).engine_pid == pid


async def test_only_the_item_that_was_being_made_is_blamed_for_a_crash(worker: WorkerServer) -> None:
    await worker.load(rehearsal_plan(), claim())
    items = [item("job-done"), item("job-guilty", "rehearse: crash at step 2"), item("job-bystander")]
    events = await worker.generate("run-blame", items, token=claim())
    assert error_of(events, "job-done") == ""
    assert error_of(events, "job-guilty") == EngineDiedError.reason
    assert error_of(events, "job-bystander") == "WORKER_LOST"


async def test_a_stopped_supervisor_does_not_take_its_engine_for_hung_when_it_wakes(worker: WorkerServer) -> None:
    await worker.load(rehearsal_plan(idle_s=0.5), claim())
    run = asyncio.create_task(
        worker.generate("run-asleep", [item("job-asleep", "rehearse: steps of 0.1 s", steps=30)], token=claim())
    )
    await worker.wait_for(GENERATING)
    worker.process.send_signal(signal.SIGSTOP)
    await asyncio.sleep(1.8)
    worker.process.send_signal(signal.SIGCONT)
    assert error_of(await run, "job-asleep") == ""


async def test_a_failure_names_the_fallback_that_it_triggers(worker: WorkerServer) -> None:
    plan = rehearsal_plan()
    plan.fallbacks.add(trigger=plan_pb2.FALLBACK_TRIGGER_OUT_OF_MEMORY, plan=rehearsal_plan(weight_bytes=1))
    await worker.load(plan, claim())
    events = await worker.generate("run-oom", [item("job-oom", "rehearse: out of memory at step 1")], token=claim())
    assert events[-1].error.metadata["triggered_fallback"] == "OUT_OF_MEMORY"
