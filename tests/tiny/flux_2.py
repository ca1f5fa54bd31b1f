"""Tiny FLUX.2 pipelines: klein with a Qwen3 text encoder, dev with a Mistral one and a plain tokenizer in place of its
processor, which needs torchvision."""

from __future__ import annotations

from typing import Any

from diffusers import AutoencoderKLFlux2, Flux2KleinPipeline, Flux2Pipeline, Flux2Transformer2DModel
from transformers import Mistral3Config, Mistral3ForConditionalGeneration, Qwen3Config, Qwen3ForCausalLM

from tests.tiny.parts import WIDTH, byte_tokenizer, decoder_config, shifting_scheduler

# Layers of the text encoder whose states are put side by side.
NUM_LAYERS = 3


def _autoencoder() -> AutoencoderKLFlux2:
    return AutoencoderKLFlux2(
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        block_out_channels=(8, 16),
        layers_per_block=1,
        latent_channels=4,
        norm_num_groups=4,
        sample_size=32,
    )


def _transformer(**more: Any) -> Flux2Transformer2DModel:
    return Flux2Transformer2DModel(
        in_channels=16,
        num_layers=1,
        num_single_layers=1,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=NUM_LAYERS * WIDTH,
        timestep_guidance_channels=32,
        axes_dims_rope=(4, 4, 4, 4),
        **more,
    )


def build_klein() -> Flux2KleinPipeline:
    """Reads layers 9, 18 and 27 of its text encoder, which therefore has 28."""
    config = Qwen3Config(**decoder_config(num_hidden_layers=28))
    return Flux2KleinPipeline(
        scheduler=shifting_scheduler(),
        vae=_autoencoder(),
        text_encoder=Qwen3ForCausalLM(config),
        tokenizer=byte_tokenizer(),
        transformer=_transformer(guidance_embeds=False),
        is_distilled=False,
    )


def build_dev() -> Flux2Pipeline:
    """Reads layers 10, 20 and 30 of its text encoder, which therefore has 31."""
    config = Mistral3Config(
        text_config={"model_type": "mistral", **decoder_config(num_hidden_layers=31)},
        vision_config={
            "model_type": "pixtral",
            "hidden_size": 16,
            "intermediate_size": 32,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "image_size": 32,
            "patch_size": 16,
        },
    )
    return Flux2Pipeline(
        scheduler=shifting_scheduler(),
        vae=_autoencoder(),
        text_encoder=Mistral3ForConditionalGeneration(config),
        tokenizer=byte_tokenizer(2048),
        transformer=_transformer(guidance_embeds=True),
    )
