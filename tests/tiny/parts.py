"""Parts that tiny pipelines share: small decoders, small VAEs, and a plan for the whole.

Vocabularies are made by hand because trained ones differ from run to run. Invariant: a seed gives the same
weights every time.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from diffusers import AutoencoderKL, FlowMatchEulerDiscreteScheduler

from darkroom.knowledge import load_catalogue
from darkroom.v1 import checkpoint_pb2, device_pb2, model_pb2, plan_pb2
from services.worker.engine.assembly.random_weights import byte_tokenizer as byte_tokenizer

VOCABULARY = 320
WIDTH = 32


def decoder_config(**more: Any) -> dict[str, Any]:
    """Fields that all language models of transformers share."""
    return {
        "vocab_size": VOCABULARY,
        "hidden_size": WIDTH,
        "intermediate_size": 64,
        "num_hidden_layers": 3,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 16,
        "max_position_embeddings": 2048,
        "pad_token_id": 0,
        "bos_token_id": 0,
        "eos_token_id": 0,
        **more,
    }


def image_autoencoder(channels: int = 4, levels: int = 2) -> AutoencoderKL:
    """A VAE whose latents have half the side at two levels, an eighth at four."""
    return AutoencoderKL(
        sample_size=32,
        block_out_channels=(8,) * (levels - 1) + (16,),
        down_block_types=("DownEncoderBlock2D",) * levels,
        up_block_types=("UpDecoderBlock2D",) * levels,
        layers_per_block=1,
        latent_channels=channels,
        norm_num_groups=4,
        use_quant_conv=False,
        use_post_quant_conv=False,
        shift_factor=0.1,
        scaling_factor=1.0,
    )


def flow_scheduler() -> FlowMatchEulerDiscreteScheduler:
    """Euler steps of a rectified flow."""
    return FlowMatchEulerDiscreteScheduler(shift=1.5, use_dynamic_shifting=False)


def shifting_scheduler() -> FlowMatchEulerDiscreteScheduler:
    """As above, shifted by the picture's size."""
    return FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True)


def fill_empty(module: torch.nn.Module) -> None:
    """Gives values to parameters that a class leaves as they lie in memory."""
    with torch.no_grad():
        for parameter in module.parameters():
            if not torch.isfinite(parameter).all() or parameter.abs().max() > 1e3 or not parameter.any():
                parameter.normal_(std=0.05)


def save(folder: Path, build: Callable[[], Any], seed: int = 0) -> Path:
    """Builds a pipeline from a seed and saves it."""
    build_from(build, seed).save_pretrained(folder)
    return folder


def build_from(build: Callable[[], Any], seed: int = 0) -> Any:
    """Builds a pipeline from a seed."""
    torch.manual_seed(seed)
    pipeline = build()
    for component in pipeline.components.values():
        if isinstance(component, torch.nn.Module):
            fill_empty(component)
    return pipeline


def plan_of(model: str, folder: Path, **arguments: Any) -> plan_pb2.Plan:
    """A dense plan for a tiny pipeline: call recipe, components and hooks are the catalogue's own for `model`.

    Args:
        model: of the catalogue.
        folder: of the saved pipeline.
        arguments: fixed ones of the call that replace the catalogue's, since a tiny text encoder reads less.
    """
    variant = load_catalogue().find(model)
    plan = plan_pb2.Plan(
        model=model,
        family=variant.family,
        engine=plan_pb2.ENGINE_DIFFUSERS,
        pipeline_class=variant.pipeline_class,
        source=checkpoint_pb2.CheckpointSource(kind=checkpoint_pb2.CHECKPOINT_KIND_DENSE, path=str(folder)),
        compute_type=plan_pb2.COMPUTE_TYPE_FLOAT32,
        offload=plan_pb2.OFFLOAD_TIER_NONE,
        speed_mode=plan_pb2.SPEED_MODE_OFF,
        attention=plan_pb2.ATTENTION_BACKEND_NATIVE,
        call=variant.call,
        assembly_hooks=variant.assembly_hooks,
    )
    plan.call.max_images = variant.limits.max_reference_images
    plan.call.needs_image = variant.limits.image_input == model_pb2.IMAGE_INPUT_REQUIRED
    for fixed in plan.call.arguments:
        if fixed.name in arguments:
            setattr(fixed, fixed.WhichOneof("value"), arguments.pop(fixed.name))
    assert not arguments, "the catalogue's recipe has no such argument"
    for name, part in variant.components.items():
        size = sum(file.stat().st_size for file in (folder / name).glob("*.safetensors"))
        plan.components.add(
            name=name,
            role=part.role,
            scheme=device_pb2.SCHEME_NONE,
            compute_type=plan_pb2.COMPUTE_TYPE_FLOAT32,
            weight_bytes=size,
        )
    total = sum(part.weight_bytes for part in plan.components)
    plan.memory.CopyFrom(plan_pb2.MemoryBudget(weight_bytes=total, required_bytes=2 * total, fill_limit=0.85))
    return plan
