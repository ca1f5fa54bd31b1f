"""A tiny Qwen-Image pipeline."""

from __future__ import annotations

from diffusers import AutoencoderKLQwenImage, QwenImagePipeline, QwenImageTransformer2DModel

from tests.tiny.parts import WIDTH, byte_tokenizer, shifting_scheduler
from tests.tiny.vision_language import qwen2_5_vl


def video_autoencoder() -> AutoencoderKLQwenImage:
    """A VAE with an axis of frames: latents of an eighth of the side, four channels."""
    return AutoencoderKLQwenImage(
        base_dim=8,
        z_dim=4,
        dim_mult=[1, 1, 1, 1],
        num_res_blocks=1,
        temperal_downsample=[False, True, True],
        latents_mean=[0.0] * 4,
        latents_std=[1.0] * 4,
    )


def build() -> QwenImagePipeline:
    """Latents are packed two by two: sixteen channels."""
    return QwenImagePipeline(
        scheduler=shifting_scheduler(),
        vae=video_autoencoder(),
        text_encoder=qwen2_5_vl(),
        tokenizer=byte_tokenizer(2048),
        transformer=QwenImageTransformer2DModel(
            patch_size=2,
            in_channels=16,
            out_channels=4,
            num_layers=2,
            attention_head_dim=16,
            num_attention_heads=2,
            joint_attention_dim=WIDTH,
            axes_dims_rope=(4, 6, 6),
        ),
    )
