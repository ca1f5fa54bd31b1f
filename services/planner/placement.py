"""Placements: where weights rest at each stage, and what that needs on the device.

Knows nothing of schemes: it gets bytes. Invariant: `PLACEMENTS` is ordered by speed, fastest first.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from darkroom.v1 import plan_pb2
from services.planner.memory import Demand

NONE = plan_pb2.OFFLOAD_TIER_NONE
ENCODERS = plan_pb2.OFFLOAD_TIER_ENCODERS
GROUP = plan_pb2.OFFLOAD_TIER_GROUP
MODEL = plan_pb2.OFFLOAD_TIER_MODEL
SEQUENTIAL = plan_pb2.OFFLOAD_TIER_SEQUENTIAL


@dataclass(frozen=True)
class Placement:
    """An offload tier with what goes along with it."""

    tier: plan_pb2.OffloadTier.ValueType
    streams_text_encoders: bool = False
    tiles: bool = False


@dataclass(frozen=True, slots=True)
class Weights:
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
        return self.denoiser + self.text + self.companions


@dataclass(frozen=True, slots=True)
class Activations:
    """Bytes that each stage needs beside weights."""

    encode: int
    denoise: int
    decode: int
    tiled_decode: int


def _with_tiles(*placements: Placement) -> tuple[Placement, ...]:
    return tuple(item for whole in placements for item in (whole, replace(whole, tiles=True)))


# Tiling costs a decode little; streaming costs every step.
PLACEMENTS = _with_tiles(
    Placement(NONE),
    Placement(ENCODERS),
    Placement(ENCODERS, streams_text_encoders=True),
    Placement(GROUP),
    Placement(GROUP, streams_text_encoders=True),
    Placement(MODEL),
    Placement(SEQUENTIAL, streams_text_encoders=True),
)


def demand_of(placement: Placement, weights: Weights, activations: Activations, overhead: int) -> Demand:
    """Returns what `placement` needs on the device, stage by stage, and on the host."""
    encode, denoise, decode, host = _held(placement, weights)
    decoding = activations.tiled_decode if placement.tiles else activations.decode
    stages = (
        (plan_pb2.MEMORY_STAGE_LOAD, weights.loading, 0),
        (plan_pb2.MEMORY_STAGE_ENCODE, encode, activations.encode),
        (plan_pb2.MEMORY_STAGE_DENOISE, denoise, activations.denoise),
        (plan_pb2.MEMORY_STAGE_DECODE, decode, decoding),
    )
    return Demand(stages, overhead, host)


def _held(placement: Placement, weights: Weights) -> tuple[int, int, int, int]:
    """Returns the weights on the device while encoding, denoising and decoding, and those on the host."""
    streams, tier = placement.streams_text_encoders, placement.tier
    visiting = weights.text_layer if streams else weights.text
    if tier == NONE:
        return weights.total, weights.total, weights.total, 0
    if tier == ENCODERS:
        stays = weights.denoiser + weights.companions
        return stays + visiting, stays, stays, weights.text
    if tier == GROUP:
        stays = weights.companions + (0 if streams else weights.text)
        host = weights.denoiser + (weights.text if streams else 0)
        return weights.companions + visiting, stays + weights.streamed_denoiser, stays, host
    if tier == MODEL:
        return weights.text_encoder, weights.expert + weights.companions, weights.companions, weights.total
    return weights.text_layer, weights.denoiser_layer + weights.companions, weights.companions, weights.total
