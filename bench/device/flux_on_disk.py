"""FLUX.1 dev at full size on this machine's disk, with random weights, and stock diffusers reading it.

The T5 text encoder has one of its 24 layers, so that disks and minutes suffice: prompts are encoded all the same. Knows
nothing of the worker. Invariant: what is read cold was dropped from the page cache.
"""

from __future__ import annotations

import dataclasses
import os
import time
from pathlib import Path
from typing import Any

import torch
from diffusers import FluxPipeline

from bench.device.building import build, build_from
from darkroom.knowledge import Catalogue
from services.worker.engine.assembly.random_weights import make_pipeline

PROMPT = "a lighthouse on a cliff at dusk, oil on canvas"
SEED = 7


def write(catalogue: Catalogue, folder: Path, device: torch.device) -> None:
    """Writes the pipeline's folder, and waits for the disk."""
    t5 = catalogue.architectures["t5-xxl"]
    parts: dict[str, Any] = {
        "transformer": build(catalogue, "flux.1", device),
        "vae": build(catalogue, "flux.1-vae", device),
        "text_encoder": build(catalogue, "clip-l", device),
        "text_encoder_2": build_from(dataclasses.replace(t5, config={**t5.config, "num_layers": 1}), device),
    }
    pipeline, _ = make_pipeline(FluxPipeline, parts)
    pipeline.save_pretrained(folder, safe_serialization=True, max_shard_size="10GB")
    os.sync()


def drop_page_cache(folder: Path) -> None:
    """Has the next read come from the disk."""
    os.sync()
    for file in folder.rglob("*.safetensors"):
        descriptor = os.open(file, os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def read(folder: Path, device: torch.device) -> tuple[FluxPipeline, float]:
    """Returns stock diffusers' pipeline on the device, and the seconds that took."""
    began = time.perf_counter()
    pipeline = FluxPipeline.from_pretrained(folder, torch_dtype=torch.bfloat16).to(device)
    if device.type == "cuda":
        torch.cuda.synchronize()
    seconds = time.perf_counter() - began
    pipeline.set_progress_bar_config(disable=True)
    return pipeline, seconds


def paint(pipeline: FluxPipeline, steps: int, side: int) -> Any:
    """Returns the picture of a stock call."""
    return pipeline(
        PROMPT,
        width=side,
        height=side,
        num_inference_steps=steps,
        guidance_scale=3.5,
        max_sequence_length=512,
        generator=torch.Generator("cpu").manual_seed(SEED),
    ).images[0]
