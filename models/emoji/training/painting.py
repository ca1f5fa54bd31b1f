"""Paint with the exported folder, exactly as any caller would: stock FluxPipeline, fixed seeds.

Does not know what is right. The defaults here are the ones of the model card.
Invariant: the picture of a prompt depends on its seed only, not on its neighbours in the batch
(batching changes at most 1 of 255 in a pixel).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from diffusers import FluxPipeline
from PIL import Image
from torch import nn

from models.emoji.training.progress import track
from models.emoji.training.shapes import MAX_TOKENS

SCHEMES = ("float32", "bfloat16", "fp8-storage", "int8-dynamic", "int8-weight", "fp8-weight")
MIN_FEATURES = 128
"""Linear layers with fewer inputs or outputs are left alone by the quantising schemes."""


@dataclass(frozen=True)
class Settings:
    """Arguments of the pipeline call; the defaults are the model card's (its sweep says why)."""

    num_steps: int = 12
    guidance: float = 2.0
    canvas_px: int = 128
    batch: int = 8


def load_pipeline(model: Path, scheme: str = "bfloat16") -> FluxPipeline:
    """The pipeline under one of SCHEMES; all but float32 compute in bfloat16."""
    dtype = torch.float32 if scheme == "float32" else torch.bfloat16
    pipeline = FluxPipeline.from_pretrained(model, dtype=dtype, local_files_only=True)
    pipeline.set_progress_bar_config(disable=True)
    if scheme == "fp8-storage":
        pipeline.transformer.enable_layerwise_casting(storage_dtype=torch.float8_e4m3fn, compute_dtype=dtype)
    elif scheme not in ("float32", "bfloat16"):
        quantize_transformer(pipeline.transformer, scheme)
    return pipeline


def is_quantizable(module: nn.Module, name: str) -> bool:
    """Whether a module is a block's linear layer of at least MIN_FEATURES on both sides."""
    return (
        isinstance(module, nn.Linear)
        and "transformer_blocks." in name
        and min(module.in_features, module.out_features) >= MIN_FEATURES
    )


def quantize_transformer(transformer: nn.Module, scheme: str) -> None:
    """Quantise the block linears in place with torchao."""
    from torchao.quantization import (
        Float8WeightOnlyConfig,
        Int8DynamicActivationInt8WeightConfig,
        Int8WeightOnlyConfig,
        quantize_,
    )

    configs = {
        "int8-dynamic": Int8DynamicActivationInt8WeightConfig,
        "int8-weight": Int8WeightOnlyConfig,
        "fp8-weight": Float8WeightOnlyConfig,
    }
    quantize_(transformer, configs[scheme](), filter_fn=is_quantizable)


def paint(
    pipeline: FluxPipeline, prompts: list[str], seeds: list[int], settings: Settings = Settings()
) -> list[Image.Image]:
    """One picture a prompt."""
    pictures: list[Image.Image] = []
    for first in track(range(0, len(prompts), settings.batch), "painting"):
        texts = prompts[first : first + settings.batch]
        generators = [torch.Generator().manual_seed(seed) for seed in seeds[first : first + settings.batch]]
        pictures += pipeline(
            prompt=texts,
            negative_prompt=[""] * len(texts),
            true_cfg_scale=settings.guidance,
            num_inference_steps=settings.num_steps,
            height=settings.canvas_px,
            width=settings.canvas_px,
            max_sequence_length=MAX_TOKENS,
            generator=generators,
        ).images
    return pictures
