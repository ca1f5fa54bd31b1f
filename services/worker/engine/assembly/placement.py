"""Fifth stage: weights go where the plan's offload tier wants them, and decoding is tiled or sliced as planned.

By the hooks of diffusers and accelerate. Invariant: a tier that this file does not know was refused before; nothing
spills in silence.
"""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from accelerate import cpu_offload_with_hook
from diffusers.hooks.group_offloading import apply_group_offloading

from darkroom.modeling.tiles import use_tiles
from darkroom.v1 import plan_pb2
from services.worker.engine.assembly.stage import Assembly, Stage
from services.worker.engine.reporting import LoadReporter

NONE, ENCODERS = plan_pb2.OFFLOAD_TIER_NONE, plan_pb2.OFFLOAD_TIER_ENCODERS
GROUP, MODEL = plan_pb2.OFFLOAD_TIER_GROUP, plan_pb2.OFFLOAD_TIER_MODEL
SEQUENTIAL = plan_pb2.OFFLOAD_TIER_SEQUENTIAL
TEXT_ENCODER, DENOISER = plan_pb2.COMPONENT_ROLE_TEXT_ENCODER, plan_pb2.COMPONENT_ROLE_DENOISER
HOST = torch.device("cpu")
# Kinds of device that copy beside computing.
STREAMING_TYPES = ("cuda", "xpu")


class PlacementStage(Stage):
    """Moves the pipeline to the device, or has it moved piece by piece while it runs."""

    name = "placement"

    def apply(self, assembly: Assembly, report: LoadReporter) -> None:
        report.check()
        tier = assembly.plan.offload
        if tier == NONE:
            assembly.pipeline.to(assembly.device)
        elif tier == MODEL:
            assembly.pipeline.enable_model_cpu_offload(device=assembly.device)
        else:
            _place_parts(assembly, report)
        name = plan_pb2.OffloadTier.Name(tier).removeprefix("OFFLOAD_TIER_").lower()
        assembly.engage("offload", resolved=name, engaged=name, reason=_remark(assembly))
        _engage_text_encoders(assembly)
        _decode_as_planned(assembly)

    def undo(self, assembly: Assembly) -> None:
        """Takes the hooks off, which hold on to modules; the weights go with the stages before."""
        for visitor in assembly.visitors:
            with contextlib.suppress(Exception):  # a device that has failed can't be moved from
                visitor.offload()
        assembly.visitors.clear()
        if assembly.pipeline is not None:
            with contextlib.suppress(Exception):
                assembly.pipeline.remove_all_hooks()


def _place_parts(assembly: Assembly, report: LoadReporter) -> None:
    """Places each component by its role: denoisers stay or are streamed, text encoders visit, stay or are streamed."""
    plan, roles = assembly.plan, {part.name: part.role for part in assembly.plan.components}
    for name, component in assembly.pipeline.components.items():
        report.check()
        if not isinstance(component, torch.nn.Module):
            continue
        role = roles.get(name)
        if role in (TEXT_ENCODER, DENOISER) and plan.offload == SEQUENTIAL:
            # Not by accelerate's hooks: 1.15 fails on transformers 5's tensors (Tensor.new() got requires_grad).
            stream(component, assembly.device, "leaf_level", is_overlapped=False)
        elif role == TEXT_ENCODER and plan.streams_text_encoders:
            stream(component, assembly.device, "leaf_level")
        elif role == TEXT_ENCODER and plan.offload == ENCODERS:
            assembly.visitors.append(cpu_offload_with_hook(component, assembly.device)[1])
        elif role == DENOISER and plan.offload == GROUP:
            stream(component, assembly.device, "block_level")
        else:
            component.to(assembly.device)
    if assembly.visitors:
        for part in plan.components:
            if part.role == DENOISER:
                assembly.parts[part.name].register_forward_pre_hook(_Departure(assembly))


class _Departure:
    """Sends visiting text encoders off before the denoiser runs: the prompt is encoded by then."""

    def __init__(self, assembly: Assembly) -> None:
        self._assembly = assembly

    def __call__(self, module: torch.nn.Module, args: Any) -> None:
        for visitor in self._assembly.visitors:
            visitor.offload()


def stream(component: Any, device: torch.device, level: str, is_overlapped: bool = True) -> None:
    """Has a component's parts copied to the device as they are needed.

    Args:
        component: on the host.
        device: where it computes.
        level: of diffusers: "block_level", or "leaf_level" for single layers.
        is_overlapped: copies run beside computing, where the device can.
    """
    has_streams = is_overlapped and device.type in STREAMING_TYPES
    options: dict[str, Any] = {"num_blocks_per_group": 1} if level == "block_level" else {}
    apply_group_offloading(
        component,
        onload_device=device,
        offload_device=HOST,
        offload_type=level,
        non_blocking=has_streams,
        use_stream=has_streams,
        record_stream=has_streams,
        **options,
    )


def _remark(assembly: Assembly) -> str:
    if assembly.plan.offload == NONE:
        return ""
    if assembly.device.type == "cpu":
        return "the device's memory is the host's: nothing is freed, and nothing is streamed beside computing"
    if assembly.plan.offload == GROUP and assembly.device.type not in STREAMING_TYPES:
        return "this device does not copy beside computing: blocks are moved before they run"
    return ""


def _engage_text_encoders(assembly: Assembly) -> None:
    """Layer by layer everything is streamed; else what the plan says, which was refused where a tier can't."""
    is_streamed = assembly.plan.streams_text_encoders or assembly.plan.offload == SEQUENTIAL
    assembly.engage("text_encoder_streaming", resolved=_word(is_streamed), engaged=_word(is_streamed))


def _decode_as_planned(assembly: Assembly) -> None:
    """Has pictures decoded in tiles, and batches one by one, as planned."""
    plan, vae = assembly.plan, getattr(assembly.pipeline, "vae", None)
    for knob, wanted in (("vae_tiling", plan.vae_tiling), ("vae_slicing", plan.vae_slicing)):
        has_switch = hasattr(vae, f"enable_{knob.removeprefix('vae_')}")
        if wanted and has_switch and knob == "vae_tiling":
            use_tiles(vae, plan.vae_tile_side)
        elif wanted and has_switch:
            vae.enable_slicing()  # type: ignore[union-attr]
        reason = "this VAE has no such mode" if wanted and not has_switch else ""
        assembly.engage(knob, resolved=_word(wanted), engaged=_word(wanted and has_switch), reason=reason)


def _word(is_on: bool) -> str:
    return "on" if is_on else "off"
