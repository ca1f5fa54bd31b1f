"""Getting a worker to hold the right plan: inspect, plan, load, and plan once more where the worker asks for it.

Knows nothing of Redis or jobs' states. Invariant: what is loaded in the end is the planner's plan for this worker's
device, or the fallback that the plan itself names.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass, replace

from darkroom.rpc.errors import DarkroomError, NothingFitsError, SourceRefusedError, WorkerLostError
from darkroom.rpc.logs import log
from darkroom.v1 import checkpoint_pb2, device_pb2, plan_pb2, planner_service_pb2, worker_pb2, worker_service_pb2
from services.gateway.admission import size_name
from services.gateway.workers.client import PlannerClient
from services.gateway.workers.seat import Seat

# Parts of a plan that explain it and change with the moment; two plans that differ only here run the same.
EXPLAINING = ("memory", "reasons", "fallbacks", "workload", "idle", "step", "wants_settled_reading")
# What a source costs changes as soon as it was fetched; what it is does not.
COSTS = ("fetch_bytes", "size_bytes", "transient_bytes", "steady_bytes")


@dataclass(frozen=True)
class Need:
    """What must be loaded."""

    model: str
    preferences: plan_pb2.PlanPreferences
    workload: plan_pb2.Workload | None
    # As admission.kind_of names it.
    kind: str
    # When nobody wants it any more, on the monotonic clock; None: never.
    ends_at: float | None = None

    @property
    def left_s(self) -> float | None:
        """Seconds until nobody wants it any more."""
        return None if self.ends_at is None else max(0.0, self.ends_at - time.monotonic())


async def ensure_loaded(
    seat: Seat, planner: PlannerClient, need: Need, token: worker_pb2.FencingToken
) -> AsyncGenerator[worker_pb2.LoadEvent, None]:
    """Makes `seat` hold the plan for `need`; yields what happens, `loaded` last.

    Raises:
        SourceRefusedError: the worker's machine can't get the model.
        NothingFitsError: no plan fits; lists the candidates.
        DarkroomError: what planner or worker fail with.
    """
    await seat.look()
    if seat.status is None or not seat.is_reachable:
        raise WorkerLostError(f"worker {seat.address} does not answer: {seat.problem}")
    inspection = await seat.client.inspect(need.model, need.left_s)
    is_read = need.preferences.source.kind != checkpoint_pb2.CHECKPOINT_KIND_RANDOM
    if inspection.problem and is_read:
        raise SourceRefusedError(inspection.problem, model=need.model)
    loaded = seat.loaded_plan
    plan = None
    if loaded is not None and seat.knows(need.kind):
        plan = await _held(planner, need, seat.status.device, loaded)
    plan = plan or await _plan(planner, need, seat.status.device, inspection)
    if loaded is not None and is_satisfied(plan, loaded):
        seat.remember_cover(need.kind, plan.workload)
        yield worker_pb2.LoadEvent(loaded=seat.status.loaded)
        return
    async for event in _load(seat, planner, need, plan, inspection, token):
        yield event


async def find_room(seat: Seat, planner: PlannerClient, need: Need, most: int) -> int:
    """Returns how many pictures of the need's size what is loaded can make at once, up to `most`.

    The planner is asked once for each size, and its arithmetic decides: the loaded plan as it stands, with the
    activations of so many. Where it does not answer, one.
    """
    loaded, workload = seat.loaded_plan, need.workload
    if loaded is None or workload is None or seat.status is None:
        return 1
    size, room = size_name(workload.width, workload.height), max(1, min(most, loaded.call.max_batch))
    if room > 1 and (known := seat.room_for(need.kind, size)) is not None:
        return known
    if not seat.may_ask_room:
        return 1
    while room > 1:
        workload = plan_pb2.Workload(width=workload.width, height=workload.height, batch_size=room, num_frames=1)
        try:
            held = await _held(planner, replace(need, workload=workload), seat.status.device, loaded)
        except DarkroomError as error:
            log.warning("room_unknown", reason=error.reason)
            seat.room_is_unknown()
            return 1
        if held is not None and is_satisfied(held, loaded):
            break
        room //= 2
    seat.remember_room(need.kind, size, room)
    return room


async def load_fallback(
    seat: Seat, plan: plan_pb2.Plan, need: Need, token: worker_pb2.FencingToken
) -> AsyncGenerator[worker_pb2.LoadEvent, None]:
    """Loads one plan as it is; yields what happens, `loaded` last."""
    request = worker_service_pb2.LoadRequest(plan=plan, token=token, replanned=True)
    async for event in _events(seat, request, need):
        if event.HasField("loaded"):
            seat.remember_load(event.loaded, need.kind, plan.workload)
        yield event


def fallback_after(plan: plan_pb2.Plan | None, error: DarkroomError) -> plan_pb2.Plan | None:
    """Returns what `plan` says to do after a run failed with `error`, None where it says nothing.

    The worker's error names the fallback that it triggers: metadata "triggered_fallback", as OUT_OF_MEMORY.
    """
    name = f"FALLBACK_TRIGGER_{error.facts.get('triggered_fallback', '')}"
    triggers = dict(plan_pb2.FallbackTrigger.items())
    if plan is None or name not in triggers:
        return None
    return next((item.plan for item in plan.fallbacks if item.trigger == triggers[name]), None)


async def _load(
    seat: Seat,
    planner: PlannerClient,
    need: Need,
    plan: plan_pb2.Plan,
    inspection: worker_pb2.Inspection,
    token: worker_pb2.FencingToken,
) -> AsyncGenerator[worker_pb2.LoadEvent, None]:
    request = worker_service_pb2.LoadRequest(plan=plan, token=token)
    replan: worker_pb2.Replan | None = None
    async for event in _events(seat, request, need):
        if event.HasField("replan"):
            replan = event.replan
            break
        if event.HasField("loaded"):
            seat.remember_load(event.loaded, need.kind, plan.workload)
        yield event
    if replan is None:
        return
    log.info("replanning", reason=replan.reason)
    plan = await _plan(planner, need, replan.device, inspection)
    async for event in load_fallback(seat, plan, need, token):
        yield event


async def _events(
    seat: Seat, request: worker_service_pb2.LoadRequest, need: Need
) -> AsyncGenerator[worker_pb2.LoadEvent, None]:
    """A load's events; one that ends without `loaded` or `replan` is a lost worker."""
    seat.forget_loaded()
    async with contextlib.aclosing(seat.client.load(request, need.left_s)) as events:
        async for event in events:
            yield event
            if event.HasField("loaded") or event.HasField("replan"):
                return
    raise WorkerLostError(f"worker {seat.address} ended a load without a result")


async def _plan(
    planner: PlannerClient, need: Need, device: device_pb2.Device, inspection: worker_pb2.Inspection
) -> plan_pb2.Plan:
    request = planner_service_pb2.PlanRequest(
        model=need.model, device=device, preferences=need.preferences, workload=need.workload, inspection=inspection
    )
    answer = await planner.ask(request, need.left_s)
    if answer.HasField("plan"):
        return answer.plan
    tried = "; ".join(f"{item.reason.code}: {item.reason.sentence}" for item in answer.no_fit.candidates)
    raise NothingFitsError(f"{need.model} does not fit {device.name or device.id}: {tried}", model=need.model)


async def _held(
    planner: PlannerClient, need: Need, device: device_pb2.Device, loaded: plan_pb2.Plan
) -> plan_pb2.Plan | None:
    """Returns the loaded plan as it holds this workload, None where it does not."""
    request = planner_service_pb2.PlanRequest(
        model=need.model, device=device, preferences=need.preferences, workload=need.workload, loaded=loaded
    )
    answer = await planner.ask(request, need.left_s)
    return answer.plan if answer.HasField("plan") else None


def is_satisfied(plan: plan_pb2.Plan, loaded: plan_pb2.Plan) -> bool:
    """Tells whether `loaded` is what `plan` would load, or one of the fallbacks that it would come to."""
    wanted = _essence(loaded)
    return any(_essence(candidate) == wanted for candidate in (plan, *(item.plan for item in plan.fallbacks)))


def _essence(plan: plan_pb2.Plan) -> bytes:
    bare = plan_pb2.Plan()
    bare.CopyFrom(plan)
    for name in EXPLAINING:
        bare.ClearField(name)  # type: ignore[arg-type]
    for source in (bare.source, *(part.source for part in bare.components if part.HasField("source"))):
        for name in COSTS:
            source.ClearField(name)  # type: ignore[arg-type]
    return bare.SerializeToString(deterministic=True)
