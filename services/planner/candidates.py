"""Candidates: every pairing of placement, schemes and source that works at all, fastest first, with what it needs.

Knows nothing of what is chosen. Invariant: the order does not depend on memory, so that more memory never gives a
slower plan; a pair that breaks is never among them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from darkroom.knowledge.family import Scheme
from darkroom.v1 import device_pb2, model_pb2, plan_pb2
from services.planner.ladder import Ladder
from services.planner.memory import RESIDENT_FILL, Demand, Supply, fits, limit_of, overhead_of
from services.planner.placement import GROUP, MODEL, NONE, PLACEMENTS, SEQUENTIAL, Placement, demand_of
from services.planner.question import Question
from services.planner.sizes import Bytes, activations_of
from services.planner.sources import CONVERTED, DISK_MARGIN_BYTES, Source, denoiser_sources, fetch_bytes
from services.planner.words import SCHEME_NAMES, STAGE_NAMES, TIER_NAMES, reason, size

DENSE, STORAGE = device_pb2.SCHEME_NONE, device_pb2.SCHEME_FP8_STORAGE
# Streaming torchao's tensors breaks: copies of their inner parts are not pinned (diffusers 0.42, torchao 0.18).
UNSTREAMABLE_TIERS = (GROUP, SEQUENTIAL)


@dataclass(frozen=True, slots=True)
class Candidate:
    """One way to run the model, and what it needs."""

    placement: Placement
    scheme: Scheme
    text_scheme: Scheme
    source: Source
    demand: Demand
    fill: float
    # What a step copies to the device.
    streamed_bytes: int

    @property
    def title(self) -> str:
        extras = ["tiled decoding"] if self.placement.tiles else []
        if self.placement.streams_text_encoders:
            extras.append("text encoders streamed")
        if self.text_scheme != DENSE:
            extras.append(f"text encoders {SCHEME_NAMES[self.text_scheme]}")
        return ", ".join([SCHEME_NAMES[self.scheme], TIER_NAMES[self.placement.tier], *extras])


def candidates(question: Question, ladder: Ladder, sizes: Bytes) -> Iterator[Candidate]:
    """Yields what could run, fastest first."""
    overhead = overhead_of(question.device)
    whole, sliced = activations_of(question, slices=False), activations_of(question, slices=True)
    for placement in _placements(question):
        is_resident = placement.tier == NONE
        activations = whole if is_resident and not question.device.has_unified_memory else sliced
        is_eager = question.wishes.memory_mode == plan_pb2.MEMORY_MODE_FAST
        fill = RESIDENT_FILL if is_resident and not is_eager else 1.0
        for text_scheme in ladder.text_schemes:
            for scheme in _ordered(question, placement, ladder.schemes):
                for source in denoiser_sources(question, scheme):
                    if not _is_allowed(question, placement, source):
                        continue
                    weights = sizes.weights(scheme, text_scheme, source.visits_dense)
                    demand = demand_of(placement, weights, activations, overhead)
                    streamed = weights.expert if placement.tier == GROUP else 0
                    yield Candidate(placement, scheme, text_scheme, source, demand, fill, streamed)


def _placements(question: Question) -> tuple[Placement, ...]:
    is_video = question.variant.media == model_pb2.MEDIA_KIND_VIDEO
    allowed = tuple(item for item in PLACEMENTS if item.tiles or not is_video)
    if question.device.has_unified_memory or question.device.kind == device_pb2.DEVICE_KIND_CPU:
        # Offload frees nothing where the device's memory is the host's.
        return tuple(item for item in allowed if item.tier == NONE)
    tier = {plan_pb2.MEMORY_MODE_BALANCED: GROUP, plan_pb2.MEMORY_MODE_LOW_VRAM: MODEL}.get(question.wishes.memory_mode)
    return allowed if tier is None else tuple(item for item in allowed if item.tier == tier)


def _ordered(question: Question, placement: Placement, schemes: tuple[Scheme, ...]) -> tuple[Scheme, ...]:
    """Returns the schemes that work in this placement, in its own order."""
    if placement.tier not in UNSTREAMABLE_TIERS:
        return schemes
    streamable = tuple(scheme for scheme in schemes if scheme not in CONVERTED)
    if question.wishes.memory_mode == plan_pb2.MEMORY_MODE_BALANCED and DENSE in streamable:
        return (DENSE,)  # bit-identical to resident
    # The bus bounds streaming: half the bytes take half the time.
    return tuple(sorted(streamable, key=lambda scheme: scheme != STORAGE))


def _is_allowed(question: Question, placement: Placement, source: Source) -> bool:
    # Artifacts of video models are loaded resident only: their experts come all or none.
    is_video = question.variant.media == model_pb2.MEDIA_KIND_VIDEO
    return not (source.is_prequantised and is_video and placement.tier != NONE)


def disk_shortfall(question: Question, candidate: Candidate, sizes: Bytes) -> plan_pb2.Reason | None:
    """Returns why the disk can't take what is to be fetched; None where it can, or where nobody looked."""
    seen = question.request.inspection
    missing = fetch_bytes(question, candidate.source, frozenset(candidate.source.parts), sizes)
    if not missing or not seen.disk_free_bytes or seen.disk_free_bytes >= missing + DISK_MARGIN_BYTES:
        return None
    sentence = (
        f"{candidate.title}: {size(missing)} are still to be fetched, and {size(DISK_MARGIN_BYTES)} stay free; "
        f"the disk has {size(seen.disk_free_bytes)}."
    )
    return reason("DISK_FULL", sentence)


def shortfall(candidate: Candidate, supply: Supply) -> plan_pb2.Reason | None:
    """Returns why a candidate does not fit, with the figures; None where it fits."""
    if fits(supply, candidate.demand, candidate.fill):
        return None
    demand, limit = candidate.demand, limit_of(supply, candidate.fill)
    if demand.required <= limit:
        sentence = f"{candidate.title}: keeps {size(demand.host)} in host memory; {size(supply.host_free)} is free."
        return reason("HOST_MEMORY_EXCEEDED", sentence)
    stage, weights, activations = demand.peak
    return reason(
        "MEMORY_EXCEEDED",
        f"{candidate.title}: to {STAGE_NAMES[stage]} needs {size(demand.required)} ({size(weights)} weights, "
        f"{size(activations)} activations, {size(demand.overhead)} overhead), may fill {size(limit)} of "
        f"{size(supply.total)} ({size(supply.foreign)} held by others, {size(supply.reserve)} reserved).",
    )
