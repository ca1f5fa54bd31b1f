"""Planning: one question, one answer.

    ask → build the ladder → try candidates, fastest first → describe the first that fits → add its fallbacks

No clock, no socket, no state. Invariant: the same request and catalogue give the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterator

from darkroom.knowledge import Catalogue
from darkroom.rpc.errors import PlanRefusedError
from darkroom.v1 import plan_pb2, planner_service_pb2
from services.planner.candidates import Candidate, candidates, disk_shortfall, is_fitting, shortfall
from services.planner.description import Describer
from services.planner.fallbacks import SOURCE_FAILED, fallbacks_of
from services.planner.holding import hold
from services.planner.ladder import Ladder, build_ladder
from services.planner.memory import Supply, budget_message, supply_of
from services.planner.placement import NONE
from services.planner.question import Question, ask
from services.planner.sizes import Bytes
from services.planner.sources import ARTIFACT_KINDS
from services.planner.words import reason, size

# Candidates that do not fit; with a reason where that is not memory.
Rejected = list[tuple[Candidate, plan_pb2.Reason | None]]
# Reasons against faster candidates that a plan tells; a NoFit tells all.
MOST_REJECTIONS = 6


def plan(request: planner_service_pb2.PlanRequest, catalogue: Catalogue) -> planner_service_pb2.PlanResponse:
    """Returns how the model runs on the device, or every candidate with why it does not fit.

    Raises:
        UnknownModelError: no such model; names close ones.
        InvalidRequestError: device, workload or adapters make no sense.
        PlanRefusedError: an explicit wish can't be honoured.
    """
    question, supply = ask(request, catalogue), supply_of(request.device)
    if request.HasField("loaded"):
        return hold(question, supply)
    ladder = build_ladder(question)
    sizes = Bytes(question, ladder.vae_scheme)
    found = candidates(question, ladder, sizes)
    chosen, rejected = _choose(found, question, supply, sizes)
    response = planner_service_pb2.PlanResponse()
    if chosen is not None:
        describer, answer = Describer(question, supply, sizes), response.plan
        describer.write(answer, chosen)
        _explain(answer, question, ladder, supply, rejected)
        reads_artifact = any(part.source.kind in ARTIFACT_KINDS for part in answer.components)
        for step in fallbacks_of(chosen, found, supply, reads_artifact, answer.HasField("compile")):
            other = answer.fallbacks.add(trigger=step.trigger).plan
            describer.write(other, step.candidate, is_eager=step.is_eager, is_dense=step.trigger == SOURCE_FAILED)
    elif rejected:
        _write_no_fit(response.no_fit, ladder, supply, rejected)
    else:
        raise PlanRefusedError(
            "this scheme can't be streamed, and the memory mode asks for streaming", model=request.model
        )
    return response


def _choose(
    found: Iterator[Candidate], question: Question, supply: Supply, sizes: Bytes
) -> tuple[Candidate | None, Rejected]:
    """Returns the first candidate that fits device, host and disk, and those before it; the others stay in `found`."""
    rejected = Rejected()
    for candidate in found:
        lack = None
        if is_fitting(candidate, supply):
            lack = disk_shortfall(question, candidate, sizes)
            if lack is None:
                return candidate, rejected
        rejected.append((candidate, lack))
    return None, rejected


def _explain(answer: plan_pb2.Plan, question: Question, ladder: Ladder, supply: Supply, rejected: Rejected) -> None:
    """Adds why nothing faster was taken, and whether another reading could change that."""
    best = next((candidate for candidate, _ in rejected if candidate.placement.tier == NONE), None)
    alone = Supply(supply.total, 0, supply.reserve, supply.host_free)
    is_explicit = question.wishes.memory_mode in (plan_pb2.MEMORY_MODE_BALANCED, plan_pb2.MEMORY_MODE_LOW_VRAM)
    if best is not None and supply.foreign and not is_explicit and is_fitting(best, alone):
        answer.wants_settled_reading = True
        sentence = (
            f"{best.title} would fit but for {size(supply.foreign)} held by others; a fresh reading may change it."
        )
        answer.reasons.append(reason("FOREIGN_MEMORY_DECIDES", sentence))
    answer.reasons.extend(why for _, why in ladder.declined)
    answer.reasons.extend(lack or shortfall(candidate, supply) for candidate, lack in rejected[:MOST_REJECTIONS])


def _write_no_fit(answer: plan_pb2.NoFit, ladder: Ladder, supply: Supply, rejected: Rejected) -> None:
    """Adds every scheme and tier with the figures of the arrangement that needs least."""
    least: dict[tuple[int, int], tuple[Candidate, plan_pb2.Reason | None]] = {}
    for candidate, lack in rejected:
        key = (candidate.scheme, candidate.placement.tier)
        if key not in least or candidate.required < least[key][0].required:
            least[key] = (candidate, lack)
    for candidate, lack in least.values():
        answer.candidates.add(
            scheme=candidate.scheme,
            offload=candidate.placement.tier,
            reason=lack or shortfall(candidate, supply),
            memory=budget_message(supply, candidate.demand, candidate.fill),
        )
    for scheme, why in ladder.declined:
        answer.candidates.add(scheme=scheme, reason=why)
