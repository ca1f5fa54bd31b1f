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
from services.planner.memory import RESIDENT_FILL, Demand, Supply, fits, limit_of, overhead_of
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
    held,
    stages_of,
)
from services.planner.question import Question
from services.planner.sizes import Bytes, activations_of
from services.planner.sources import CONVERTED, DISK_MARGIN_BYTES, Source, denoiser_sources, fetch_bytes, replaced_parts
from services.planner.words import SCHEME_NAMES, STAGE_NAMES, STREAMED_TIER_NAMES, TIER_NAMES, reason, size

DENSE, STORAGE = device_pb2.SCHEME_NONE, device_pb2.SCHEME_FP8_STORAGE
# Streaming torchao's tensors breaks: copies of their inner parts are not pinned (diffusers 0.42, torchao 0.18). GGUF's
# blocks are not streamed reliably either.
STREAMING_TIERS = (GROUP, SEQUENTIAL)
STREAMABLE = (DENSE, STORAGE)


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
        """What it needs, stage by stage."""
        stages = stages_of(self.placement, self.weights, self.activations)
        return Demand(stages, self.overhead, self.host, self.required)

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


class Route(NamedTuple):
    """A scheme of the denoiser and a way to come by it, with what they hold in one arrangement."""

    scheme: Scheme
    source: Source
    weights: Weights
    overhead: int
    # Bytes of the largest stage before decoding, of the weights while decoding, and of what rests on the host.
    before: int
    decoding: int
    host: int


def candidates(question: Question, ladder: Ladder, sizes: Bytes) -> Iterator[Candidate]:
    """Yields what could run, fastest first."""
    whole = activations_of(question, slices=False)
    sliced = activations_of(question, slices=True) if question.workload.batch_size > 1 else whole
    is_eager = question.wishes.memory_mode == plan_pb2.MEMORY_MODE_FAST
    is_unified, is_video = question.device.has_unified_memory, question.variant.media == model_pb2.MEDIA_KIND_VIDEO
    routes = Routes(question, ladder, sizes)
    for arrangement in _arrangements(question, ladder):
        is_resident = arrangement.placement.tier == NONE
        needs = whole if is_resident and not is_unified else sliced
        fill = RESIDENT_FILL if is_resident and not is_eager else 1.0
        text_scheme = STORAGE if arrangement.casts_text_encoders else ladder.text_schemes[0]
        found = routes.through(arrangement, text_scheme, needs)
        for placement in arrangement.placements[-1:] if is_video else arrangement.placements:
            decode = needs.tiled_decode if placement.tiles else needs.decode
            for scheme, source, weights, overhead, before, decoding, host in found:
                required = max(before, decoding + decode) + overhead
                yield Candidate(placement, scheme, text_scheme, source, weights, needs, overhead, fill, required, host)


class Routes:
    """Schemes and sources of one question. Sources are looked for when a scheme's turn comes: most plans end before."""

    def __init__(self, question: Question, ladder: Ladder, sizes: Bytes) -> None:
        self._question, self._sizes = question, sizes
        self._is_video = question.variant.media == model_pb2.MEDIA_KIND_VIDEO
        self._overhead = overhead_of(question.device)
        self._sources: dict[Scheme, tuple[Source, ...]] = {}
        # Balanced stays bit-identical to resident where it can.
        is_exact = question.wishes.memory_mode == plan_pb2.MEMORY_MODE_BALANCED and DENSE in ladder.schemes
        self._schemes = [scheme for scheme in ladder.schemes if not is_exact or scheme != STORAGE]

    def through(self, arrangement: Arrangement, text_scheme: Scheme, needs: Activations) -> list[Route]:
        """Returns what can go through an arrangement, fastest first."""
        placement, sizes, found = arrangement.placement, self._sizes, []
        streams = placement.tier in STREAMING_TIERS
        for scheme in self._schemes:
            if (scheme == STORAGE) != arrangement.casts_denoiser or (streams and scheme not in STREAMABLE):
                continue
            rule = self._question.catalogue.schemes.get(scheme)
            overhead = self._overhead + (rule.slack_bytes if rule else 0)
            if scheme not in self._sources:
                self._sources[scheme] = denoiser_sources(self._question, sizes, scheme)
            for source in self._sources[scheme]:
                # Artifacts of video models are loaded resident only: their experts come all or none.
                if self._is_video and placement.tier != NONE and source.is_prequantised:
                    continue
                weights = sizes.weights(scheme, text_scheme, source.visits_dense)
                encoding, denoising, decoding = held(placement, weights)
                before = max(weights.loading, encoding + needs.encode, denoising + needs.denoise)
                host = placement.host_bytes(weights)
                found.append(Route(scheme, source, weights, overhead, before, decoding, host))
        return found


def _arrangements(question: Question, ladder: Ladder) -> Iterator[Arrangement]:
    is_host = question.device.has_unified_memory or question.device.kind == device_pb2.DEVICE_KIND_CPU
    mode = {plan_pb2.MEMORY_MODE_BALANCED: GROUP, plan_pb2.MEMORY_MODE_LOW_VRAM: MODEL}
    # Offload frees nothing where the device's memory is the host's.
    tier = NONE if is_host else mode.get(question.wishes.memory_mode)
    can_cast, can_stream = len(ladder.text_schemes) > 1, ladder.text_schemes[0] not in CONVERTED
    for arrangement in ARRANGEMENTS:
        placement = arrangement.placement
        is_wanted = tier is None or placement.tier == tier
        is_castable = can_cast or not arrangement.casts_text_encoders
        is_streamable = can_stream or not placement.streams_text_encoders
        if is_wanted and is_castable and is_streamable:
            yield arrangement


def disk_shortfall(question: Question, candidate: Candidate, sizes: Bytes) -> plan_pb2.Reason | None:
    """Returns why the disk can't take what is to be fetched; None where it can, or where nobody looked."""
    seen = question.request.inspection
    if not seen.disk_free_bytes:
        return None
    parts = replaced_parts(question, sizes, candidate.source, candidate.text_scheme)
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
        f"{size(activations)} activations, {size(needs.overhead)} overhead), may fill {size(limit)} of {supply.words}.",
    )


def is_fitting(candidate: Candidate, supply: Supply) -> bool:
    """Tells whether a candidate fits what there is."""
    return fits(supply, candidate.required, candidate.host, candidate.fill)
