"""Candidates: every pairing of arrangement, scheme and source that works at all, fastest first, with what it needs.

Knows nothing of what is chosen. Invariant: the order does not depend on memory, so that more memory never gives a
slower plan; a pair that breaks is never among them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from darkroom.knowledge.family import Scheme
from darkroom.v1 import device_pb2, model_pb2, plan_pb2
from services.planner.ladder import Ladder
from services.planner.memory import RESIDENT_FILL, Demand, Supply, demand, fits, limit_of, overhead_of
from services.planner.placement import (
    ARRANGEMENTS,
    GROUP,
    MODEL,
    NONE,
    SEQUENTIAL,
    Activations,
    Arrangement,
    Placement,
    Weights,
    required_of,
    stages_of,
)
from services.planner.question import Question
from services.planner.sizes import Bytes, activations_of
from services.planner.sources import CONVERTED, DISK_MARGIN_BYTES, Source, denoiser_sources, fetch_bytes, replaced_parts
from services.planner.words import SCHEME_NAMES, STAGE_NAMES, STREAMED_TIER_NAMES, TIER_NAMES, reason, size

DENSE, STORAGE = device_pb2.SCHEME_NONE, device_pb2.SCHEME_FP8_STORAGE
# Streaming torchao's tensors breaks: copies of their inner parts are not pinned (diffusers 0.42, torchao 0.18). GGUF's
# blocks are not streamed reliably either.
UNSTREAMABLE_TIERS = (GROUP, SEQUENTIAL)


class Candidate(NamedTuple):
    """One way to run the model, and what it needs."""

    placement: Placement
    scheme: Scheme
    text_scheme: Scheme
    source: Source
    weights: Weights
    activations: Activations
    overhead: int
    fill: float
    # Bytes of the largest stage with the overhead, and of what rests on the host.
    required: int
    host: int

    @property
    def demand(self) -> Demand:
        return demand(stages_of(self.placement, self.weights, self.activations), self.overhead, self.host)

    @property
    def title(self) -> str:
        """Names it for people: "int8, text encoders streamed, tiled decoding"."""
        names = STREAMED_TIER_NAMES if self.placement.streams_text_encoders else TIER_NAMES
        extras = [f"text encoders in {SCHEME_NAMES[self.text_scheme]}"] if self.text_scheme != DENSE else []
        extras += ["tiled decoding"] if self.placement.tiles else []
        return ", ".join([SCHEME_NAMES[self.scheme], names[self.placement.tier], *extras])

    @property
    def streamed_bytes(self) -> int:
        """Bytes that a step copies to the device."""
        return self.weights.expert if self.placement.tier == GROUP else 0


def candidates(question: Question, ladder: Ladder, sizes: Bytes) -> Iterator[Candidate]:
    """Yields what could run, fastest first."""
    whole, sliced = activations_of(question, slices=False), activations_of(question, slices=True)
    is_eager = question.wishes.memory_mode == plan_pb2.MEMORY_MODE_FAST
    is_unified, is_video = question.device.has_unified_memory, question.variant.media == model_pb2.MEDIA_KIND_VIDEO
    # Looked for when a scheme's turn comes: most plans end before the last one's.
    sources: dict[Scheme, tuple[Source, ...]] = {}
    overheads = {scheme: _overhead(question, scheme) for scheme in ladder.schemes}
    schemes = {
        (casts, streams): tuple(_schemes(question, ladder, casts, streams))
        for casts in (False, True)
        for streams in (False, True)
    }
    for arrangement in _arrangements(question, ladder):
        placement = arrangement.placement
        is_resident = placement.tier == NONE
        needs = whole if is_resident and not is_unified else sliced
        fill = RESIDENT_FILL if is_resident and not is_eager else 1.0
        text_scheme = _text_scheme(arrangement, ladder)
        for scheme in schemes[arrangement.casts_denoiser, placement.tier in UNSTREAMABLE_TIERS]:
            over = overheads[scheme]
            if scheme not in sources:
                sources[scheme] = denoiser_sources(question, scheme)
            for source in sources[scheme]:
                # Artifacts of video models are loaded resident only: their experts come all or none.
                if is_video and not is_resident and source.is_prequantised:
                    continue
                weights = sizes.weights(scheme, text_scheme, source.visits_dense)
                required, host = required_of(placement, weights, needs) + over, placement.host_bytes(weights)
                yield Candidate(placement, scheme, text_scheme, source, weights, needs, over, fill, required, host)


def _overhead(question: Question, scheme: Scheme) -> int:
    rule = question.catalogue.schemes.get(scheme)
    return overhead_of(question.device) + (rule.slack_bytes if rule else 0)


def _arrangements(question: Question, ladder: Ladder) -> Iterator[Arrangement]:
    is_video = question.variant.media == model_pb2.MEDIA_KIND_VIDEO
    is_host = question.device.has_unified_memory or question.device.kind == device_pb2.DEVICE_KIND_CPU
    mode = {plan_pb2.MEMORY_MODE_BALANCED: GROUP, plan_pb2.MEMORY_MODE_LOW_VRAM: MODEL}
    # Offload frees nothing where the device's memory is the host's.
    tier = NONE if is_host else mode.get(question.wishes.memory_mode)
    for arrangement in ARRANGEMENTS:
        placement = arrangement.placement
        is_wanted = (tier is None or placement.tier == tier) and (placement.tiles or not is_video)
        can_cast = len(ladder.text_schemes) > 1 or not arrangement.casts_text_encoders
        can_stream = ladder.text_schemes[0] not in CONVERTED or not placement.streams_text_encoders
        if is_wanted and can_cast and can_stream:
            yield arrangement


def _text_scheme(arrangement: Arrangement, ladder: Ladder) -> Scheme:
    # An explicit wish is the only rung of its ladder.
    return STORAGE if arrangement.casts_text_encoders else ladder.text_schemes[0]


def _schemes(question: Question, ladder: Ladder, casts: bool, streams: bool) -> Iterator[Scheme]:
    """Yields the denoiser's schemes that work where it is cast or not, and streamed or not."""
    is_balanced = question.wishes.memory_mode == plan_pb2.MEMORY_MODE_BALANCED
    for scheme in ladder.schemes:
        is_streamable = scheme in (DENSE, STORAGE) or not streams
        # Balanced stays bit-identical to resident where it can.
        is_exact = not is_balanced or scheme != STORAGE or DENSE not in ladder.schemes
        if is_streamable and is_exact and (scheme == STORAGE) == casts:
            yield scheme


def disk_shortfall(question: Question, candidate: Candidate, sizes: Bytes) -> plan_pb2.Reason | None:
    """Returns why the disk can't take what is to be fetched; None where it can, or where nobody looked."""
    seen = question.request.inspection
    if not seen.disk_free_bytes:
        return None
    parts = replaced_parts(question, candidate.source, candidate.text_scheme)
    missing = fetch_bytes(question, parts, sizes)
    if not missing or seen.disk_free_bytes >= missing + DISK_MARGIN_BYTES:
        return None
    sentence = (
        f"{candidate.title}: {size(missing)} are still to be fetched, and {size(DISK_MARGIN_BYTES)} stay free; "
        f"the disk has {size(seen.disk_free_bytes)}."
    )
    return reason("DISK_FULL", sentence)


def shortfall(candidate: Candidate, supply: Supply) -> plan_pb2.Reason:
    """Returns why a candidate does not fit, with the figures."""
    needs, limit = candidate.demand, limit_of(supply, candidate.fill)
    if needs.required <= limit:
        sentence = f"{candidate.title}: keeps {size(needs.host)} in host memory; {size(supply.host_free)} is free."
        return reason("HOST_MEMORY_EXCEEDED", sentence)
    stage, weights, activations = needs.peak
    return reason(
        "MEMORY_EXCEEDED",
        f"{candidate.title}: to {STAGE_NAMES[stage]} needs {size(needs.required)} ({size(weights)} weights, "
        f"{size(activations)} activations, {size(needs.overhead)} overhead), may fill {size(limit)} of "
        f"{size(supply.total)} ({size(supply.foreign)} held by others, {size(supply.reserve)} reserved).",
    )


def is_fitting(candidate: Candidate, supply: Supply) -> bool:
    """Tells whether a candidate fits what there is."""
    return fits(supply, candidate.required, candidate.host, candidate.fill)
