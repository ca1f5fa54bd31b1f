"""Candidates: every pairing of placement and schemes that works at all, fastest first, with what it needs.

Knows nothing of sources or speed modes. Invariant: the order does not depend on memory, so that more memory never gives
a slower plan.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from darkroom.knowledge.family import Role, Scheme
from darkroom.v1 import device_pb2, plan_pb2
from services.planner.memory import CPU_OVERHEAD_BYTES, OVERHEAD_BYTES, RESIDENT_FILL, Demand, Supply, limit_of
from services.planner.placement import PLACEMENTS, Placement, demand_of
from services.planner.question import Question
from services.planner.sizes import CONNECTOR, DENOISER, TEXT_ENCODER, VAE, activations_of, weights_of
from services.planner.words import SCHEME_NAMES, STAGE_NAMES, TIER_NAMES, reason, size

# Tensors of torchao. Streaming them breaks: copies of their inner parts are not pinned (diffusers 0.42, torchao 0.18).
CONVERTED = frozenset({device_pb2.SCHEME_INT8, device_pb2.SCHEME_FP8, device_pb2.SCHEME_MXFP8, device_pb2.SCHEME_NVFP4})
_NONE = device_pb2.SCHEME_NONE
_UNSTREAMABLE = (plan_pb2.OFFLOAD_TIER_GROUP, plan_pb2.OFFLOAD_TIER_SEQUENTIAL)


@dataclass(frozen=True, slots=True)
class Candidate:
    """One way to run the model, and what it needs."""

    placement: Placement
    scheme: Scheme
    text_scheme: Scheme
    demand: Demand
    fill: float

    @property
    def title(self) -> str:
        text = "" if self.text_scheme == device_pb2.SCHEME_NONE else f", {SCHEME_NAMES[self.text_scheme]} text encoders"
        return f"{SCHEME_NAMES[self.scheme]}, {TIER_NAMES[self.placement.tier]}{text}"


def candidates(question: Question, schemes: tuple[Scheme, ...]) -> Iterator[Candidate]:
    """Yields what could run, fastest first."""
    is_cpu = question.device.kind == device_pb2.DEVICE_KIND_CPU
    overhead = CPU_OVERHEAD_BYTES if is_cpu else OVERHEAD_BYTES
    is_resident_fast = question.wishes.memory_mode == plan_pb2.MEMORY_MODE_FAST
    for placement in _placements(question):
        slices = placement.tier != plan_pb2.OFFLOAD_TIER_NONE or question.device.has_unified_memory
        activations = activations_of(question, slices)
        is_resident = placement.tier == plan_pb2.OFFLOAD_TIER_NONE
        fill = RESIDENT_FILL if is_resident and not is_resident_fast else 1.0
        for scheme in schemes:
            if scheme in CONVERTED and placement.tier in _UNSTREAMABLE:
                continue
            weights = weights_of(question, _by_role(scheme, device_pb2.SCHEME_NONE), scheme in CONVERTED)
            demand = demand_of(placement, weights, activations, overhead)
            yield Candidate(placement, scheme, device_pb2.SCHEME_NONE, demand, fill)


def _by_role(scheme: Scheme, text_scheme: Scheme) -> dict[Role, Scheme]:
    return {DENOISER: scheme, TEXT_ENCODER: text_scheme, VAE: _NONE, CONNECTOR: _NONE}


def _placements(question: Question) -> tuple[Placement, ...]:
    resident, mode = PLACEMENTS[0], question.wishes.memory_mode
    if question.device.has_unified_memory or question.device.kind == device_pb2.DEVICE_KIND_CPU:
        return (resident, Placement(resident.tier, tiles=True))
    tiers = {
        plan_pb2.MEMORY_MODE_BALANCED: (plan_pb2.OFFLOAD_TIER_GROUP,),
        plan_pb2.MEMORY_MODE_LOW_VRAM: (plan_pb2.OFFLOAD_TIER_MODEL,),
    }.get(mode)
    return PLACEMENTS if tiers is None else tuple(item for item in PLACEMENTS if item.tier in tiers)


def shortfall(candidate: Candidate, supply: Supply) -> plan_pb2.Reason | None:
    """Returns why a candidate does not fit, with the figures; None where it fits."""
    if not supply.is_known:
        return None
    demand, limit = candidate.demand, limit_of(supply, candidate.fill)
    if demand.required > limit:
        stage, weights, activations = demand.peak
        return reason(
            "MEMORY_EXCEEDED",
            f"{candidate.title}: needs {size(demand.required)} while {STAGE_NAMES[stage]}s ({size(weights)} weights, "
            f"{size(activations)} activations, {size(demand.overhead)} overhead), may fill {size(limit)} of "
            f"{size(supply.total)} ({size(supply.foreign)} held by others, {size(supply.reserve)} reserved).",
        )
    if supply.host_free and demand.host > supply.host_free:
        return reason(
            "HOST_MEMORY_EXCEEDED",
            f"{candidate.title}: keeps {size(demand.host)} in host memory; {size(supply.host_free)} is free.",
        )
    return None
