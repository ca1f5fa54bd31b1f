"""A tiny HunyuanImage 2.1 pipeline, with guiders."""

from __future__ import annotations

from diffusers import (
    AdaptiveProjectedMixGuidance,
    AutoencoderKLHunyuanImage,
    HunyuanImagePipeline,
    HunyuanImageTransformer2DModel,
)
from transformers import ByT5Tokenizer, T5Config, T5EncoderModel

from tests.tiny.parts import WIDTH, byte_tokenizer, flow_scheduler
from tests.tiny.vision_language import qwen2_5_vl


def build() -> HunyuanImagePipeline:
    """The projection of its second encoder is 2,048 wide whatever the configuration."""
    glyphs = T5Config(vocab_size=1510, d_model=32, d_kv=16, d_ff=64, num_layers=1, num_heads=2)
    return HunyuanImagePipeline(
        scheduler=flow_scheduler(),
        vae=AutoencoderKLHunyuanImage(
            in_channels=3,
            out_channels=3,
            latent_channels=8,
            block_out_channels=(32, 64),
            layers_per_block=1,
            spatial_compression_ratio=2,
            sample_size=32,
            scaling_factor=1.0,
        ),
        text_encoder=qwen2_5_vl(),
        tokenizer=byte_tokenizer(2048),
        text_encoder_2=T5EncoderModel(glyphs),
        tokenizer_2=ByT5Tokenizer(),
        transformer=HunyuanImageTransformer2DModel(
            in_channels=8,
            out_channels=8,
            num_attention_heads=2,
            attention_head_dim=16,
            num_layers=1,
            num_single_layers=1,
            num_refiner_layers=1,
            text_embed_dim=WIDTH,
            text_embed_2_dim=32,
            rope_axes_dim=(8, 8),
        ),
        guider=AdaptiveProjectedMixGuidance(guidance_scale=3.5, enabled=True),
        ocr_guider=AdaptiveProjectedMixGuidance(guidance_scale=3.5, enabled=True),
    )
