"""Planning: one question, one answer.

    ask → build the ladder → try candidates, fastest first → describe the first that fits → add its fallbacks

No clock, no socket, no state. Invariant: the same request and catalogue give the same bytes.
"""

from __future__ import annotations

from darkroom.knowledge import Catalogue
from darkroom.v1 import device_pb2, plan_pb2, planner_service_pb2
from services.planner.candidates import Candidate, candidates, shortfall
from services.planner.ladder import Ladder, build_ladder
from services.planner.memory import Supply, budget_message, supply_of
from services.planner.question import Question, ask
from services.planner.recipes import component_plans, idle_budgets
from services.planner.sizes import is_estimate
from services.planner.words import SCHEME_NAMES, TIER_NAMES, reason, size


def plan(request: planner_service_pb2.PlanRequest, catalogue: Catalogue) -> planner_service_pb2.PlanResponse:
    """Returns how the model runs on the device, or every candidate with why it does not fit.

    Raises:
        UnknownModelError: no such model; names close ones.
        InvalidRequestError: device or workload make no sense.
        PlanRefusedError: an explicit wish can't be honoured.
    """
    question = ask(request, catalogue)
    ladder, supply = build_ladder(question), supply_of(request.device)
    rejected: list[tuple[Candidate, plan_pb2.Reason]] = []
    for candidate in candidates(question, ladder.schemes):
        obstacle = shortfall(candidate, supply)
        if obstacle is None:
            answer = _describe(question, ladder, supply, candidate, rejected)
            return planner_service_pb2.PlanResponse(plan=answer)
        rejected.append((candidate, obstacle))
    return planner_service_pb2.PlanResponse(no_fit=_no_fit(ladder, supply, rejected))


def _describe(
    question: Question,
    ladder: Ladder,
    supply: Supply,
    candidate: Candidate,
    rejected: list[tuple[Candidate, plan_pb2.Reason]],
) -> plan_pb2.Plan:
    variant, placement = question.variant, candidate.placement
    return plan_pb2.Plan(
        model=variant.name,
        family=variant.family,
        engine=plan_pb2.ENGINE_DIFFUSERS,
        pipeline_class=variant.pipeline_class,
        source=question.catalogue.source(variant.name),
        components=component_plans(question, candidate),
        compute_type=question.compute_type,
        offload=placement.tier,
        streams_text_encoders=placement.streams_text_encoders,
        vae_tiling=placement.tiles,
        vae_slicing=placement.tier != plan_pb2.OFFLOAD_TIER_NONE,
        speed_mode=plan_pb2.SPEED_MODE_OFF,
        attention=plan_pb2.ATTENTION_BACKEND_NATIVE,
        call=variant.call,
        workload=question.workload,
        memory=budget_message(supply, candidate.demand, candidate.fill),
        idle=idle_budgets(question, is_compiled=False),
        reasons=[
            *_reasons(question, supply, candidate),
            *[why for _, why in rejected],
            *[w for _, w in ladder.declined],
        ],
        catalogue_digest=question.catalogue.digest,
        is_assumed=question.device.is_assumed and candidate.scheme != device_pb2.SCHEME_NONE,
        is_estimate=is_estimate(question),
    )


def _reasons(question: Question, supply: Supply, candidate: Candidate) -> list[plan_pb2.Reason]:
    needs = size(candidate.demand.required)
    if supply.is_known:
        fits = reason("FITS", f"{candidate.title}: needs {needs} of {size(supply.budget)} that may be used.")
    else:
        fits = reason("MEMORY_UNKNOWN", f"{candidate.title}: needs {needs}; the device did not tell its memory.")
    scheme = reason(
        "SCHEME",
        f"The denoiser is {SCHEME_NAMES[candidate.scheme]} on a device of class "
        f"{question.device_class}; weights: {TIER_NAMES[candidate.placement.tier]}.",
    )
    return [fits, scheme, *question.reasons]


def _no_fit(ladder: Ladder, supply: Supply, rejected: list[tuple[Candidate, plan_pb2.Reason]]) -> plan_pb2.NoFit:
    tried = [
        plan_pb2.RejectedCandidate(
            scheme=candidate.scheme,
            offload=candidate.placement.tier,
            reason=why,
            memory=budget_message(supply, candidate.demand, candidate.fill),
        )
        for candidate, why in rejected
    ]
    declined = [plan_pb2.RejectedCandidate(scheme=scheme, reason=why) for scheme, why in ladder.declined]
    return plan_pb2.NoFit(candidates=[*tried, *declined])
