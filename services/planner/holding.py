"""Holding: whether the plan in force has room for another workload, with its weights where they are.

Knows nothing of ladders or sources. Invariant: no more than tiling and slicing changes; what does not fit is refused
with the figures, never found out by running out of memory.
"""

from __future__ import annotations

from darkroom.rpc.errors import InvalidRequestError
from darkroom.v1 import plan_pb2, planner_service_pb2
from services.planner.memory import Demand, Supply, budget_message, demand, fits, limit_of
from services.planner.placement import NONE
from services.planner.question import Question
from services.planner.sizes import activations_of
from services.planner.words import STAGE_NAMES, reason, size

# More than any device has: a sum of such figures still fits 64 bits.
MOST_BYTES = 1 << 50


def hold(question: Question, supply: Supply) -> planner_service_pb2.PlanResponse:
    """Returns the loaded plan for the workload of the question, or by how much it does not fit.

    Raises:
        InvalidRequestError: the loaded plan has lost its arithmetic.
    """
    loaded = question.request.loaded
    _check(loaded.memory)
    tried: list[Demand] = []
    for tiles in (False, True) if not loaded.vae_tiling else (True,):
        for slices in (False, True) if not loaded.vae_slicing else (True,):
            needs = _demand(question, loaded, tiles, slices)
            if fits(supply, needs.required, 0, 1.0):
                return planner_service_pb2.PlanResponse(plan=_changed(question, supply, needs, tiles, slices))
            tried.append(needs)
    least = min(tried, key=lambda needs: needs.required)
    stage, weights, activations = least.peak
    sentence = (
        f"{loaded.model} as loaded needs {size(least.required)} to {STAGE_NAMES[stage]} at this size "
        f"({size(weights)} weights, {size(activations)} activations), may fill {size(limit_of(supply, 1.0))}."
    )
    refused = plan_pb2.RejectedCandidate(
        offload=loaded.offload,
        reason=reason("WORKLOAD_TOO_LARGE", sentence),
        memory=budget_message(supply, least, 1.0),
    )
    return planner_service_pb2.PlanResponse(no_fit=plan_pb2.NoFit(candidates=[refused]))


def _check(memory: plan_pb2.MemoryBudget) -> None:
    figures = {"overhead_bytes": memory.overhead_bytes, "host_bytes": memory.host_bytes}
    figures |= {f"stages[{place}].weight_bytes": stage.weight_bytes for place, stage in enumerate(memory.stages)}
    wrong = {name: value for name, value in figures.items() if not 0 <= value <= MOST_BYTES}
    if wrong:
        sentence = f"is outside 0 to {MOST_BYTES}; send the plan as it was made"
        raise InvalidRequestError({f"loaded.memory.{name}": f"{value} {sentence}" for name, value in wrong.items()})


def _demand(question: Question, loaded: plan_pb2.Plan, tiles: bool, slices: bool) -> Demand:
    """Returns the loaded stages with this workload's activations."""
    needs = activations_of(question, slices)
    activations = {
        plan_pb2.MEMORY_STAGE_ENCODE: needs.encode,
        plan_pb2.MEMORY_STAGE_DENOISE: needs.denoise,
        plan_pb2.MEMORY_STAGE_DECODE: needs.tiled_decode if tiles else needs.decode,
    }
    stages = tuple(
        (stage.stage, stage.weight_bytes, activations[stage.stage])
        for stage in loaded.memory.stages
        if stage.stage in activations
    )
    if not stages:
        raise InvalidRequestError({"loaded.memory.stages": "are missing; send the plan as it was made"})
    return demand(stages, loaded.memory.overhead_bytes, loaded.memory.host_bytes)


def _changed(question: Question, supply: Supply, needs: Demand, tiles: bool, slices: bool) -> plan_pb2.Plan:
    plan = plan_pb2.Plan()
    plan.CopyFrom(question.request.loaded)
    plan.workload.CopyFrom(question.workload)
    plan.vae_tiling = tiles
    plan.vae_slicing = slices or plan.offload != NONE
    plan.memory.CopyFrom(budget_message(supply, needs, 1.0))
    plan.ClearField("fallbacks")
    sentence = f"The loaded plan holds this size: needs {size(needs.required)}."
    plan.reasons.insert(0, reason("HELD", sentence + (" Decodes in tiles." if tiles else "")))
    return plan
