"""The engine: diffusers on PyTorch, or stable-diffusion.cpp where that is there and serves the model.

Knows nothing of memory. Invariant: an explicit engine is honoured or refused, never swapped in silence.
"""

from __future__ import annotations

from darkroom.knowledge import Variant
from darkroom.rpc.errors import PlanRefusedError
from darkroom.v1 import checkpoint_pb2, device_pb2, plan_pb2
from services.planner.words import reason

DIFFUSERS, NATIVE = plan_pb2.ENGINE_DIFFUSERS, plan_pb2.ENGINE_NATIVE
GGUF = checkpoint_pb2.CHECKPOINT_KIND_GGUF
# Kinds that the native engine serves better than PyTorch does: it needs no float32 copy of the weights.
NATIVE_KINDS = (device_pb2.DEVICE_KIND_CPU,)


def choose_engine(
    variant: Variant, device: device_pb2.Device, wishes: plan_pb2.PlanPreferences
) -> tuple[plan_pb2.Engine.ValueType, plan_pb2.Reason]:
    """Returns the engine and why.

    Raises:
        PlanRefusedError: the native engine is asked for and can't run this model on this device, or these weights.
    """
    lack = _lack(variant, device)
    if wishes.engine == NATIVE and lack:
        raise PlanRefusedError(f"the native engine can't run {variant.name}: {lack}", model=variant.name)
    is_random = wishes.source.kind == checkpoint_pb2.CHECKPOINT_KIND_RANDOM
    if wishes.engine == NATIVE and is_random:
        raise PlanRefusedError("the native engine has no random weights; leave the engine out", model=variant.name)
    is_wanted = wishes.engine == NATIVE or (not wishes.engine and not is_random and device.kind in NATIVE_KINDS)
    if is_wanted and not lack:
        sentence = (
            "stable-diffusion.cpp runs it from a GGUF file, which stays packed in memory (unverified on hardware)."
        )
        return NATIVE, reason("ENGINE_NATIVE", sentence)
    if lack and device.kind in NATIVE_KINDS and not wishes.engine:
        return DIFFUSERS, reason("ENGINE_DIFFUSERS", f"diffusers runs it; the native engine can't: {lack}.")
    return DIFFUSERS, reason("ENGINE_DIFFUSERS", "diffusers runs it.")


def _lack(variant: Variant, device: device_pb2.Device) -> str:
    """Returns what the native engine lacks for this model; empty where nothing."""
    if not variant.native_flags or not variant.gguf:
        return "it knows no file of this model"
    if not device.has_native_engine:
        return "no stable-diffusion.cpp program for this device is installed"
    return ""


def native_source(variant: Variant) -> checkpoint_pb2.CheckpointSource:
    """Returns the GGUF file that the native engine reads, in eight bits a weight."""
    model = variant.gguf.rpartition("/")[2].removesuffix("-GGUF")
    return checkpoint_pb2.CheckpointSource(kind=GGUF, repo_id=variant.gguf, file=f"{model}-Q8_0.gguf")
