"""Placements: where weights rest at each stage, and what that needs on the device.

Knows nothing of schemes: it gets bytes. Invariant: `PLACEMENTS` is ordered by speed, fastest first.
"""

from __future__ import annotations

from dataclasses import dataclass

from darkroom.v1 import plan_pb2
from services.planner.memory import Demand


@dataclass(frozen=True)
class Placement:
    """An offload tier with what goes along with it."""

    tier: plan_pb2.OffloadTier.ValueType
    streams_text_encoders: bool = False
    tiles: bool = False


@dataclass(frozen=True)
class Weights:
    """Bytes of the components under the schemes of a candidate."""

    denoisers: tuple[int, ...]
    text_encoders: tuple[int, ...]
    vae: int
    # Of the largest layer of the text encoders, and of what streaming keeps of the denoiser on the device.
    text_layer: int
    streamed_denoiser: int
    denoiser_layer: int
    # Peak while loading.
    loading: int

    @property
    def total(self) -> int:
        return sum(self.denoisers) + sum(self.text_encoders) + self.vae


@dataclass(frozen=True)
class Activations:
    """Bytes that each stage needs beside weights."""

    encode: int
    denoise: int
    decode: int
    tiled_decode: int


# Fastest first.
PLACEMENTS = (
    Placement(plan_pb2.OFFLOAD_TIER_NONE),
    Placement(plan_pb2.OFFLOAD_TIER_ENCODERS),
    Placement(plan_pb2.OFFLOAD_TIER_ENCODERS, streams_text_encoders=True),
    Placement(plan_pb2.OFFLOAD_TIER_GROUP),
    Placement(plan_pb2.OFFLOAD_TIER_GROUP, streams_text_encoders=True),
    Placement(plan_pb2.OFFLOAD_TIER_MODEL, tiles=True),
    Placement(plan_pb2.OFFLOAD_TIER_SEQUENTIAL, streams_text_encoders=True, tiles=True),
)


def demand_of(placement: Placement, weights: Weights, activations: Activations, overhead: int) -> Demand:
    """Returns what `placement` needs on the device, stage by stage, and on the host."""
    encode, denoise, decode = _held(placement, weights)
    decoding = activations.tiled_decode if placement.tiles else activations.decode
    stages = (
        (plan_pb2.MEMORY_STAGE_LOAD, max(weights.loading, 0), 0),
        (plan_pb2.MEMORY_STAGE_ENCODE, encode, activations.encode),
        (plan_pb2.MEMORY_STAGE_DENOISE, denoise, activations.denoise),
        (plan_pb2.MEMORY_STAGE_DECODE, decode, decoding),
    )
    return Demand(stages, overhead, _on_host(placement, weights))


def _held(placement: Placement, weights: Weights) -> tuple[int, int, int]:
    """Returns the weights on the device while encoding, denoising and decoding."""
    text, denoiser = sum(weights.text_encoders), sum(weights.denoisers)
    visiting = weights.text_layer if placement.streams_text_encoders else text
    if placement.tier == plan_pb2.OFFLOAD_TIER_NONE:
        return weights.total, weights.total, weights.total
    if placement.tier == plan_pb2.OFFLOAD_TIER_ENCODERS:
        stays = denoiser + weights.vae
        return stays + visiting, stays, stays
    if placement.tier == plan_pb2.OFFLOAD_TIER_GROUP:
        stays = weights.vae + (0 if placement.streams_text_encoders else text)
        encoding = weights.vae + visiting
        return encoding, stays + weights.streamed_denoiser, stays
    if placement.tier == plan_pb2.OFFLOAD_TIER_MODEL:
        return max(weights.text_encoders, default=0), max(weights.denoisers), weights.vae
    return weights.text_layer, weights.denoiser_layer, weights.vae


def _on_host(placement: Placement, weights: Weights) -> int:
    text, denoiser = sum(weights.text_encoders), sum(weights.denoisers)
    if placement.tier == plan_pb2.OFFLOAD_TIER_NONE:
        return 0
    if placement.tier == plan_pb2.OFFLOAD_TIER_ENCODERS:
        return text
    if placement.tier == plan_pb2.OFFLOAD_TIER_GROUP:
        return denoiser + (text if placement.streams_text_encoders else 0)
    return weights.total
