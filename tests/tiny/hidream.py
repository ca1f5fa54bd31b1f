"""A tiny HiDream-I1 pipeline: four text encoders, two experts a layer."""

from __future__ import annotations

from diffusers import HiDreamImagePipeline, HiDreamImageTransformer2DModel
from transformers import CLIPTextModelWithProjection, LlamaConfig, LlamaForCausalLM, T5EncoderModel

from tests.tiny.flux import clip_config, clip_tokenizer, t5_config, t5_tokenizer
from tests.tiny.parts import WIDTH, byte_tokenizer, decoder_config, image_autoencoder, shifting_scheduler


def build() -> HiDreamImagePipeline:
    """Both CLIP encoders project to 32."""
    return HiDreamImagePipeline(
        scheduler=shifting_scheduler(),
        vae=image_autoencoder(),
        text_encoder=CLIPTextModelWithProjection(clip_config()),
        tokenizer=clip_tokenizer(),
        text_encoder_2=CLIPTextModelWithProjection(clip_config()),
        tokenizer_2=clip_tokenizer(),
        text_encoder_3=T5EncoderModel(t5_config()),
        tokenizer_3=t5_tokenizer(),
        text_encoder_4=LlamaForCausalLM(LlamaConfig(**decoder_config(num_hidden_layers=2))),
        tokenizer_4=byte_tokenizer(),
        transformer=HiDreamImageTransformer2DModel(
            patch_size=2,
            in_channels=4,
            out_channels=4,
            num_layers=1,
            num_single_layers=1,
            attention_head_dim=16,
            num_attention_heads=2,
            caption_channels=[WIDTH, 32],
            text_emb_dim=64,
            num_routed_experts=2,
            num_activated_experts=1,
            axes_dims_rope=(8, 4, 4),
            max_resolution=(32, 32),
            llama_layers=[0, 1],
        ),
    )
