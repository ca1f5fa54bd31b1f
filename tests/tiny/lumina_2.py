"""A tiny Lumina-Image 2.0 pipeline."""

from __future__ import annotations

from diffusers import Lumina2Pipeline, Lumina2Transformer2DModel
from transformers import Gemma2Config, Gemma2Model

from tests.tiny.parts import WIDTH, byte_tokenizer, decoder_config, flow_scheduler, image_autoencoder


def build() -> Lumina2Pipeline:
    """Its pipeline takes latents for an eighth of the side, whatever the VAE."""
    return Lumina2Pipeline(
        transformer=Lumina2Transformer2DModel(
            sample_size=16,
            patch_size=2,
            in_channels=4,
            hidden_size=48,
            num_layers=1,
            num_refiner_layers=1,
            num_attention_heads=2,
            num_kv_heads=1,
            multiple_of=16,
            axes_dim_rope=(8, 8, 8),
            axes_lens=(512, 64, 64),
            cap_feat_dim=WIDTH,
        ),
        scheduler=flow_scheduler(),
        vae=image_autoencoder(levels=4),
        text_encoder=Gemma2Model(Gemma2Config(**decoder_config())),
        tokenizer=byte_tokenizer(),
    )
