"""A tiny Z-Image pipeline."""

from __future__ import annotations

from diffusers import ZImagePipeline, ZImageTransformer2DModel
from transformers import Qwen3Config, Qwen3Model

from tests.tiny.parts import WIDTH, byte_tokenizer, decoder_config, flow_scheduler, image_autoencoder


def build() -> ZImagePipeline:
    """Its feed-forward width is 8/3 of the dimension: 96 gives 256, a multiple that kernels take."""
    return ZImagePipeline(
        scheduler=flow_scheduler(),
        vae=image_autoencoder(),
        text_encoder=Qwen3Model(Qwen3Config(**decoder_config())),
        tokenizer=byte_tokenizer(),
        transformer=ZImageTransformer2DModel(
            in_channels=4,
            dim=96,
            n_layers=1,
            n_refiner_layers=1,
            n_heads=3,
            n_kv_heads=3,
            cap_feat_dim=WIDTH,
            axes_dims=[8, 12, 12],
            axes_lens=[256, 64, 64],
        ),
    )
