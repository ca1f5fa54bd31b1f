"""A tiny Krea 2 pipeline."""

from __future__ import annotations

from diffusers import Krea2Pipeline, Krea2Transformer2DModel

from tests.tiny.parts import WIDTH, byte_tokenizer, shifting_scheduler
from tests.tiny.qwen_image import video_autoencoder
from tests.tiny.vision_language import qwen3_vl


def build() -> Krea2Pipeline:
    """Reads two layers of its text encoder."""
    return Krea2Pipeline(
        scheduler=shifting_scheduler(),
        vae=video_autoencoder(),
        text_encoder=qwen3_vl(),
        tokenizer=byte_tokenizer(2048),
        transformer=Krea2Transformer2DModel(
            in_channels=16,
            num_layers=1,
            attention_head_dim=16,
            num_attention_heads=2,
            num_key_value_heads=1,
            intermediate_size=64,
            timestep_embed_dim=32,
            text_hidden_dim=WIDTH,
            num_text_layers=2,
            text_num_attention_heads=2,
            text_num_key_value_heads=2,
            text_intermediate_size=64,
            num_layerwise_text_blocks=1,
            num_refiner_text_blocks=1,
            axes_dims_rope=(4, 6, 6),
        ),
        text_encoder_select_layers=(1, 2),
        is_distilled=False,
        patch_size=2,
    )
