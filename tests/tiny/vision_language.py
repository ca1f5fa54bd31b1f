"""Tiny vision-language models, of which pipelines use the language half."""

from __future__ import annotations

from transformers import (
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen3VLConfig,
    Qwen3VLModel,
)

from tests.tiny.parts import WIDTH, decoder_config

# Halves of a head, split over time, height and width.
SECTIONS = [2, 3, 3]


def qwen2_5_vl() -> Qwen2_5_VLForConditionalGeneration:
    """Text encoder of Qwen-Image and HunyuanImage."""
    rope = {"rope_type": "default", "mrope_section": SECTIONS, "rope_theta": 10000.0}
    text = decoder_config(rope_parameters=rope)
    vision = {
        "depth": 1,
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_heads": 2,
        "out_hidden_size": WIDTH,
        "fullatt_block_indexes": [0],
    }
    config = Qwen2_5_VLConfig(text_config=text, vision_config=vision, **_ids())
    return Qwen2_5_VLForConditionalGeneration(config)


def qwen3_vl() -> Qwen3VLModel:
    """Text encoder of Krea 2."""
    rope = {"rope_type": "default", "mrope_section": SECTIONS, "mrope_interleaved": True, "rope_theta": 10000.0}
    text = decoder_config(rope_parameters=rope)
    vision = {
        "depth": 1,
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_heads": 2,
        "out_hidden_size": WIDTH,
        "deepstack_visual_indexes": [0],
        "num_position_embeddings": 16,
    }
    return Qwen3VLModel(Qwen3VLConfig(text_config=text, vision_config=vision, **_ids()))


def _ids() -> dict[str, int]:
    return {"image_token_id": 261, "video_token_id": 262, "vision_start_token_id": 259, "vision_end_token_id": 260}
