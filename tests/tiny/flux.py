"""A tiny FLUX.1 pipeline: the real classes, a few hundred thousand parameters, vocabularies written by hand.

Vocabularies are made by hand because trained ones differ from run to run. Invariant: the same folder every time, but
for what the libraries write into it.
"""

from __future__ import annotations

import string
from pathlib import Path

import torch
from diffusers import (
    AutoencoderKL,
    FlowMatchEulerDiscreteScheduler,
    FluxKontextPipeline,
    FluxPipeline,
    FluxTransformer2DModel,
)
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTokenizer, T5Config, T5EncoderModel, T5TokenizerFast

from darkroom.v1 import checkpoint_pb2, device_pb2, plan_pb2
from tests.tiny.parts import image_autoencoder

COMPONENTS = (
    ("text_encoder", plan_pb2.COMPONENT_ROLE_TEXT_ENCODER),
    ("text_encoder_2", plan_pb2.COMPONENT_ROLE_TEXT_ENCODER),
    ("transformer", plan_pb2.COMPONENT_ROLE_DENOISER),
    ("vae", plan_pb2.COMPONENT_ROLE_VAE),
)
LETTERS = string.ascii_lowercase + string.digits
MAX_TOKENS = 32


def save_tiny_flux(folder: Path, seed: int = 0, guidance_embeds: bool = False) -> FluxPipeline:
    """Makes the pipeline, saves it to `folder` and returns it. The same seed gives the same weights."""
    torch.manual_seed(seed)
    pipeline = build(guidance_embeds)
    pipeline.save_pretrained(folder)
    return pipeline


def build(guidance_embeds: bool = False) -> FluxPipeline:
    """Makes the pipeline; its weights are random numbers as they come."""
    pipeline = FluxPipeline(
        scheduler=FlowMatchEulerDiscreteScheduler(shift=1.5),
        vae=AutoencoderKL(
            sample_size=32,
            in_channels=3,
            out_channels=3,
            block_out_channels=(8, 16),
            down_block_types=("DownEncoderBlock2D",) * 2,
            up_block_types=("UpDecoderBlock2D",) * 2,
            layers_per_block=1,
            latent_channels=4,
            norm_num_groups=4,
            use_quant_conv=False,
            use_post_quant_conv=False,
            shift_factor=0.1,
            scaling_factor=1.0,
        ),
        text_encoder=CLIPTextModel(clip_config()),
        tokenizer=clip_tokenizer(),
        text_encoder_2=T5EncoderModel(t5_config()),
        tokenizer_2=t5_tokenizer(),
        transformer=FluxTransformer2DModel(
            patch_size=1,
            in_channels=16,
            num_layers=1,
            num_single_layers=1,
            attention_head_dim=16,
            num_attention_heads=2,
            joint_attention_dim=32,
            pooled_projection_dim=32,
            axes_dims_rope=(4, 4, 8),
            guidance_embeds=guidance_embeds,
        ),
    )
    # Random layers hardly react to a prompt; wider ones do, beyond the rounding to 8 bits.
    with torch.no_grad():
        for module in (pipeline.text_encoder, pipeline.text_encoder_2):
            for parameter in module.parameters():
                parameter.mul_(8.0)
        for parameter in pipeline.transformer.parameters():
            parameter.mul_(1.5)
    return pipeline


def build_kontext() -> FluxKontextPipeline:
    """As above, with a VAE of four levels: it reads pictures at a megapixel, of which this leaves 4,096 tokens."""
    parts = build().components
    return FluxKontextPipeline(**{**parts, "vae": image_autoencoder(channels=4, levels=4)})


def tiny_flux_plan(folder: Path, name: str = "tiny", source: str = "path") -> plan_pb2.Plan:
    """A plan for the saved pipeline, as a planner would make it.

    Args:
        folder: of the pipeline; with source "bundled" its name counts.
        name: of the model.
        source: "path" or "bundled".
    """
    place = {"path": str(folder)} if source == "path" else {"bundled": folder.name}
    plan = plan_pb2.Plan(
        model=name,
        family="flux.1",
        engine=plan_pb2.ENGINE_DIFFUSERS,
        pipeline_class="FluxPipeline",
        source=checkpoint_pb2.CheckpointSource(kind=checkpoint_pb2.CHECKPOINT_KIND_DENSE, **place),
        compute_type=plan_pb2.COMPUTE_TYPE_FLOAT32,
        offload=plan_pb2.OFFLOAD_TIER_NONE,
        speed_mode=plan_pb2.SPEED_MODE_OFF,
        attention=plan_pb2.ATTENTION_BACKEND_NATIVE,
        call=plan_pb2.CallRecipe(guidance_argument="true_cfg_scale", takes_negative_prompt=True),
    )
    plan.call.arguments.add(name="max_sequence_length", int_value=MAX_TOKENS)
    for component, role in COMPONENTS:
        size = sum(file.stat().st_size for file in (folder / component).glob("*.safetensors"))
        plan.components.add(
            name=component,
            role=role,
            scheme=device_pb2.SCHEME_NONE,
            compute_type=plan_pb2.COMPUTE_TYPE_FLOAT32,
            weight_bytes=size,
        )
    total = sum(part.weight_bytes for part in plan.components)
    plan.memory.CopyFrom(plan_pb2.MemoryBudget(weight_bytes=total, required_bytes=2 * total, fill_limit=0.85))
    return plan


def clip_tokenizer() -> CLIPTokenizer:
    """CLIP's, one token a letter."""
    pieces = ["<|startoftext|>", "<|endoftext|>", *LETTERS, *(f"{letter}</w>" for letter in LETTERS), ",</w>", ".</w>"]
    vocabulary = {piece: place for place, piece in enumerate(pieces)}
    return CLIPTokenizer(vocab=vocabulary, merges=[], model_max_length=77)


def clip_config() -> CLIPTextConfig:
    """CLIP's text model."""
    return CLIPTextConfig(
        vocab_size=128,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=77,
        projection_dim=32,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=1,
    )


def t5_tokenizer() -> T5TokenizerFast:
    """T5's, one token a letter."""
    pieces = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("▁", -1.0)]
    pieces += [(letter, -2.0) for letter in LETTERS + ",."]
    return T5TokenizerFast(vocab=pieces, extra_ids=0, model_max_length=MAX_TOKENS)


def t5_config() -> T5Config:
    """T5's encoder."""
    return T5Config(
        vocab_size=64, d_model=32, d_kv=16, d_ff=64, num_layers=1, num_heads=2, feed_forward_proj="gated-gelu"
    )
