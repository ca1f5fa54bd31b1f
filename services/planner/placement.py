"""Placements: where weights rest at each stage, and what that needs on the device.

Knows nothing of schemes: it gets bytes. Invariant: `ARRANGEMENTS` is ordered by speed, fastest first.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import NamedTuple

from darkroom.v1 import plan_pb2
from services.planner.memory import StageDemand

NONE = plan_pb2.OFFLOAD_TIER_NONE
ENCODERS = plan_pb2.OFFLOAD_TIER_ENCODERS
GROUP = plan_pb2.OFFLOAD_TIER_GROUP
MODEL = plan_pb2.OFFLOAD_TIER_MODEL
SEQUENTIAL = plan_pb2.OFFLOAD_TIER_SEQUENTIAL


# What streams is pinned, and PyTorch pins every tensor in a power of two of bytes: Wan's 28.6 GB took 43.0 on an H200
# (torch 2.11), and FLUX.1's would take 1.56 times theirs by the same rule.
PINNED_FACTOR = 1.6


class Placement(NamedTuple):
    """An offload tier with what goes along with it."""

    tier: plan_pb2.OffloadTier.ValueType
    streams_text_encoders: bool = False
    tiles: bool = False

    def host_bytes(self, weights: Weights) -> int:
        """Returns what rests in host memory."""
        if self.tier == NONE:
            return 0
        if self.tier == ENCODERS:
            return int(weights.text * PINNED_FACTOR) if self.streams_text_encoders else weights.text
        if self.tier == GROUP:
            return int((weights.denoiser + (weights.text if self.streams_text_encoders else 0)) * PINNED_FACTOR)
        return weights.total


class Weights(NamedTuple):
    """Bytes of the components under the schemes of a candidate."""

    denoiser: int
    # The largest of several experts.
    expert: int
    text: int
    # The largest of several text encoders.
    text_encoder: int
    # VAEs and connectors.
    companions: int
    # The largest single layer of the text encoders and of the denoiser.
    text_layer: int
    denoiser_layer: int
    # What streaming block by block keeps of the denoiser: all that is in no block, and two blocks.
    streamed_denoiser: int
    # Peak while loading, where that is more than what stays.
    loading: int

    @property
    def total(self) -> int:
        """Of everything at rest."""
        return self.denoiser + self.text + self.companions


class Activations(NamedTuple):
    """Bytes that each stage needs beside weights."""

    encode: int
    denoise: int
    decode: int
    tiled_decode: int


@dataclass(frozen=True)
class Arrangement:
    """A placement, and what is cast to float8 storage for it."""

    placement: Placement
    casts_text_encoders: bool = False
    casts_denoiser: bool = False

    @functools.cached_property
    def placements(self) -> tuple[Placement, ...]:
        """Decoding whole, then in tiles: tiling costs a decode little; what another arrangement changes costs more."""
        tiled = self.placement._replace(tiles=True)
        return (tiled,) if self.placement.tiles else (self.placement, tiled)


def _resident(casts_denoiser: bool) -> tuple[Arrangement, ...]:
    """Everything that keeps the denoiser on the device: text encoders stay, leave whole, are cast, are streamed."""
    return (
        Arrangement(Placement(NONE), casts_denoiser=casts_denoiser),
        Arrangement(Placement(ENCODERS), casts_denoiser=casts_denoiser),
        Arrangement(Placement(NONE), True, casts_denoiser),
        Arrangement(Placement(ENCODERS), True, casts_denoiser),
        Arrangement(Placement(ENCODERS, streams_text_encoders=True), casts_denoiser=casts_denoiser),
    )


def _streamed(casts_denoiser: bool) -> tuple[Arrangement, ...]:
    """Everything that streams the denoiser, for which the bus is the bound: half the bytes take half the time."""
    return (
        Arrangement(Placement(GROUP), False, casts_denoiser),
        Arrangement(Placement(GROUP), True, casts_denoiser),
        Arrangement(Placement(GROUP, streams_text_encoders=True), False, casts_denoiser),
    )


# Fastest first: a step as it is, a step with weights cast at every layer, a step with weights streamed, a step after
# whole components have moved, and layer by layer.
ARRANGEMENTS = (
    *_resident(casts_denoiser=False),
    *_resident(casts_denoiser=True),
    *_streamed(casts_denoiser=True),
    *_streamed(casts_denoiser=False),
    Arrangement(Placement(MODEL)),
    Arrangement(Placement(MODEL), casts_text_encoders=True),
    Arrangement(Placement(MODEL), True, casts_denoiser=True),
    Arrangement(Placement(SEQUENTIAL, streams_text_encoders=True, tiles=True)),
)


def stages_of(placement: Placement, weights: Weights, activations: Activations) -> tuple[StageDemand, ...]:
    """Returns what `placement` needs on the device, stage by stage."""
    encode, denoise, decode = held(placement, weights)
    decoding = activations.tiled_decode if placement.tiles else activations.decode
    return (
        (plan_pb2.MEMORY_STAGE_LOAD, weights.loading, 0),
        (plan_pb2.MEMORY_STAGE_ENCODE, encode, activations.encode),
        (plan_pb2.MEMORY_STAGE_DENOISE, denoise, activations.denoise),
        (plan_pb2.MEMORY_STAGE_DECODE, decode, decoding),
    )


def held(placement: Placement, weights: Weights) -> tuple[int, int, int]:
    """Returns the weights on the device while encoding, denoising and decoding."""
    streams, tier = placement.streams_text_encoders, placement.tier
    visiting = weights.text_layer if streams else weights.text
    if tier == NONE:
        total = weights.total
        return total, total, total
    if tier == ENCODERS:
        stays = weights.denoiser + weights.companions
        return stays + visiting, stays, stays
    if tier == GROUP:
        stays = weights.companions + (0 if streams else weights.text)
        return weights.companions + visiting, stays + weights.streamed_denoiser, stays
    if tier == MODEL:
        return max(weights.text_encoder, weights.companions), weights.expert, weights.companions
    return weights.text_layer, weights.denoiser_layer + weights.companions, weights.companions
