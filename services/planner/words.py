"""Words for sentences: names of schemes, tiers and types, and bytes as people read them. Knows nothing of planning."""

from __future__ import annotations

from typing import Any

from darkroom.knowledge.schema import Choice
from darkroom.v1 import device_pb2, plan_pb2

GB = 1_000_000_000


def _names(choice: Choice) -> dict[Any, str]:
    return {number: word for word, number in choice.words.items()}


SCHEME_NAMES = {
    **_names(Choice(device_pb2.Scheme.DESCRIPTOR)),
    device_pb2.SCHEME_NONE: "dense",
    device_pb2.SCHEME_FP8_STORAGE: "fp8 storage",
}
TIER_NAMES = {
    plan_pb2.OFFLOAD_TIER_NONE: "resident",
    plan_pb2.OFFLOAD_TIER_ENCODERS: "text encoders offloaded",
    plan_pb2.OFFLOAD_TIER_GROUP: "denoiser streamed",
    plan_pb2.OFFLOAD_TIER_MODEL: "one component at a time",
    plan_pb2.OFFLOAD_TIER_SEQUENTIAL: "one layer at a time",
}
# With text encoders streamed as well.
STREAMED_TIER_NAMES = {
    **TIER_NAMES,
    plan_pb2.OFFLOAD_TIER_ENCODERS: "text encoders streamed",
    plan_pb2.OFFLOAD_TIER_GROUP: "denoiser and text encoders streamed",
}
COMPUTE_NAMES = _names(Choice(plan_pb2.ComputeType.DESCRIPTOR))
STAGE_NAMES = _names(Choice(plan_pb2.MemoryStage.DESCRIPTOR))


def size(num_bytes: int) -> str:
    """Returns decimal gigabytes, or megabytes below one: "11.9 GB", "66 MB"."""
    return f"{num_bytes / GB:.1f} GB" if num_bytes >= GB else f"{num_bytes / 1e6:.0f} MB"


def reason(code: str, sentence: str) -> plan_pb2.Reason:
    """Returns one reason; `code` is UPPER_SNAKE and stable."""
    return plan_pb2.Reason(code=code, sentence=sentence)
