"""One run for several jobs: each hears its own events, what falls runs again, what breaks reaches all."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from types import SimpleNamespace
from typing import Any

from darkroom.rpc.errors import DarkroomError, OutOfMemoryError, WorkerHeldError, WorkerLostError, error_to_message
from darkroom.v1 import generation_pb2, job_pb2, plan_pb2, planner_service_pb2, worker_pb2, worker_service_pb2
from services.gateway.admission import kind_of
from services.gateway.config import GatewaySettings
from services.gateway.running.batch import Batch
from services.gateway.store.record import Claim
from services.gateway.workers.seat import Seat

REQUEST = generation_pb2.GenerationRequest(model="tiny", prompt="a cat", width=8, height=8, steps=2)
TOKEN = worker_pb2.FencingToken(store_id="s", counter=7)
FULL = OutOfMemoryError("full", triggered_fallback="OUT_OF_MEMORY")
Script = Callable[[worker_service_pb2.WorkerServiceGenerateRequest], list[tuple[str, Any]]]


class Listener:
    """Stands for an attempt, and writes down what it is told."""

    def __init__(self, name: str, run_sequence: int = 0, *, is_adopted: bool = False) -> None:
        job = job_pb2.Job(id=name, request=REQUEST, attempts=1)
        self.claim = Claim(job, TOKEN, "run", run_sequence, is_adopted)
        self.is_on_worker = False
        self.is_open = True
        self.heard: list[str] = []
        self.failure: Exception | None = None

    def take(self, event: worker_pb2.RunEvent) -> None:
        self.heard.append(event.WhichOneof("event") or "")
        if event.HasField("output") or event.HasField("error"):
            self.is_open = False

    def take_load(self, progress: generation_pb2.Progress) -> None:
        self.heard.append("load")

    def fail(self, failure: Exception) -> None:
        self.failure, self.is_open = failure, False

    def alive(self, phase: int, budgets: plan_pb2.IdleBudgets | None, at_once: int) -> None:
        """Its lease goes on."""

    async def begin_run(self, run_id: str) -> None:
        self.heard.append(run_id)


class ScriptedWorker:
    """A worker's client. Each call of `generate` plays the next script; then the line breaks."""

    def __init__(self, *scripts: Script) -> None:
        self.scripts = list(scripts)
        self.asked: list[worker_service_pb2.WorkerServiceGenerateRequest] = []
        self.loads: list[plan_pb2.Plan] = []
        self.forgotten: list[str] = []

    async def generate(
        self, request: worker_service_pb2.WorkerServiceGenerateRequest, limit_s: float | None = None
    ) -> AsyncGenerator[worker_pb2.RunEvent, None]:
        self.asked.append(request)
        for sequence, (job_id, told) in enumerate(self.scripts.pop(0)(request), start=request.after_sequence + 1):
            if isinstance(told, DarkroomError):
                told = {"error": error_to_message(told)}
            yield worker_pb2.RunEvent(sequence=sequence, job_id=job_id, **told)
        raise WorkerLostError("the line broke")

    async def load(
        self, request: worker_service_pb2.LoadRequest, limit_s: float | None = None
    ) -> AsyncGenerator[worker_pb2.LoadEvent, None]:
        self.loads.append(request.plan)
        yield worker_pb2.LoadEvent(loaded=worker_pb2.LoadedModel(plan=request.plan))

    async def acknowledge(self, job_id: str, token: worker_pb2.FencingToken) -> None:
        self.forgotten.append(job_id)


class Planner:
    """Has room for `room` pictures at once."""

    def __init__(self, room: int) -> None:
        self.room = room

    async def ask(
        self, request: planner_service_pb2.PlanRequest, limit_s: float | None = None
    ) -> planner_service_pb2.PlanResponse:
        if request.workload.batch_size > self.room:
            return planner_service_pb2.PlanResponse(no_fit=plan_pb2.NoFit())
        return planner_service_pb2.PlanResponse(plan=request.loaded)


STEP, DONE = {"progress": generation_pb2.Progress(completed=1)}, {"output": generation_pb2.Output()}


async def run(worker: ScriptedWorker, *listeners: Listener, room: int = 4, lost_s: float = 1.0) -> None:
    """Runs a batch on a worker that has the model loaded."""
    plan = plan_pb2.Plan(model="tiny", call=plan_pb2.CallRecipe(max_batch=4))
    plan.fallbacks.add(
        trigger=plan_pb2.FALLBACK_TRIGGER_OUT_OF_MEMORY, plan=plan_pb2.Plan(model="tiny", vae_tiling=True)
    )
    seat = Seat("127.0.0.1:1")
    seat.client = worker  # type: ignore[assignment]
    loaded = worker_pb2.LoadedModel(plan=plan)
    workload = plan_pb2.Workload(width=8, height=8, batch_size=1, num_frames=1)
    seat.remember_load(loaded, kind_of(REQUEST), workload)
    settings = GatewaySettings(gateway_max_batch=4, gateway_worker_lost_s=lost_s)
    means = SimpleNamespace(settings=settings, planner=Planner(room))
    await Batch(means, seat, listeners).run()  # type: ignore[arg-type]


async def test_each_job_hears_its_own_events_and_no_others() -> None:
    one, two = Listener("one"), Listener("two")
    worker = ScriptedWorker(
        lambda request: [("one", STEP), ("two", STEP), ("two", DONE), ("gone", STEP), ("one", DONE)]
    )
    await run(worker, one, two)
    assert (one.heard, two.heard) == (["progress", "output"], ["progress", "output"])
    assert [item.job_id for item in worker.asked[0].items] == ["one", "two"]
    assert not worker.asked[0].must_exist


async def test_after_a_broken_line_the_same_run_goes_on_and_is_not_begun_anew() -> None:
    one, two = Listener("one"), Listener("two")
    worker = ScriptedWorker(lambda request: [("one", STEP), ("two", DONE)], lambda request: [("one", DONE)])
    await run(worker, one, two)
    assert one.heard == ["progress", "output"]
    again = worker.asked[1]
    assert (again.run_id, again.after_sequence, again.must_exist) == ("run", 2, True)
    assert [item.job_id for item in again.items] == ["one"]


async def test_an_adopted_batch_is_replayed_from_where_the_least_heard_of_its_jobs_is() -> None:
    worker = ScriptedWorker(lambda request: [("one", DONE), ("two", DONE)])
    await run(worker, Listener("one", 5, is_adopted=True), Listener("two", 3, is_adopted=True))
    assert (worker.asked[0].after_sequence, worker.asked[0].must_exist) == (3, True)


async def test_jobs_that_trigger_a_fallback_run_again_once_the_others_have_ended() -> None:
    one, two, three = listeners = [Listener(name) for name in ("one", "two", "three")]
    worker = ScriptedWorker(
        lambda request: [("one", FULL), ("two", STEP), ("three", FULL), ("two", DONE)],
        lambda request: [("three", DONE), ("one", DONE)],
    )
    await run(worker, *listeners)
    assert two.heard == ["progress", "output"]
    assert one.heard == three.heard == ["run+", "output"]
    assert [plan.vae_tiling for plan in worker.loads] == [True]
    assert worker.forgotten == ["one", "three"]
    second = worker.asked[1]
    assert ([item.job_id for item in second.items], second.run_id) == (["one", "three"], "run+")
    assert (second.after_sequence, second.must_exist) == (0, False)


async def test_what_the_loaded_plan_has_no_room_for_goes_back_to_the_line() -> None:
    listeners = [Listener(name) for name in ("one", "two", "three")]
    worker = ScriptedWorker(lambda request: [(item.job_id, DONE) for item in request.items])
    await run(worker, *listeners, room=2)
    assert [listener.heard for listener in listeners] == [["output"], ["output"], []]
    assert isinstance(listeners[2].failure, WorkerHeldError)


async def test_a_worker_that_does_not_come_back_is_lost_for_every_job_that_still_waits() -> None:
    one, two = Listener("one"), Listener("two")
    worker = ScriptedWorker(lambda request: [("one", DONE)], *[lambda request: []] * 9)
    await run(worker, one, two, lost_s=0.3)
    assert one.failure is None
    assert isinstance(two.failure, WorkerLostError)
