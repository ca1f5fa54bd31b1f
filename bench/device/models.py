"""The models that are measured: their parts by the catalogue's names, the size, and inputs of that size.

Knows nothing of schemes. Invariant: inputs have as many tokens as the planner reckons with, prompts in full.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from darkroom.v1 import plan_pb2

TEXT_TOKENS = 512
Inputs = dict[str, Any]


@dataclass(frozen=True)
class Model:
    """One model at one size."""

    # Of the catalogue.
    variant: str
    denoiser: str
    # The largest text encoder's architecture and component.
    encoder: str
    vae: str
    workload: plan_pb2.Workload
    latents: tuple[int, ...]
    # Makes the denoiser's arguments on a device.
    inputs: Callable[[torch.device], Inputs]
    # Its pipeline takes an earlier layer of the text encoder than the last.
    keeps_hidden_states: bool = False


def flux_inputs(device: torch.device) -> Inputs:
    """1024 x 1024: 4,096 image tokens of 64 channels."""
    return {
        "hidden_states": noise(device, 1, 4096, 64),
        "encoder_hidden_states": noise(device, 1, TEXT_TOKENS, 4096),
        "pooled_projections": noise(device, 1, 768),
        "timestep": torch.full((1,), 0.5, device=device, dtype=torch.bfloat16),
        "img_ids": torch.zeros(4096, 3, device=device, dtype=torch.bfloat16),
        "txt_ids": torch.zeros(TEXT_TOKENS, 3, device=device, dtype=torch.bfloat16),
        "guidance": torch.full((1,), 3.5, device=device, dtype=torch.float32),
    }


def z_image_inputs(device: torch.device) -> Inputs:
    """1024 x 1024, in lists of one picture."""
    return {
        "x": [noise(device, 16, 1, 128, 128)],
        "t": torch.full((1,), 0.5, device=device, dtype=torch.bfloat16),
        "cap_feats": [noise(device, TEXT_TOKENS, 2560)],
    }


def qwen_inputs(device: torch.device) -> Inputs:
    """1024 x 1024: 4,096 image tokens."""
    return {
        "hidden_states": noise(device, 1, 4096, 64),
        "encoder_hidden_states": noise(device, 1, TEXT_TOKENS, 3584),
        "encoder_hidden_states_mask": torch.ones(1, TEXT_TOKENS, device=device, dtype=torch.bool),
        "timestep": torch.full((1,), 0.5, device=device, dtype=torch.bfloat16),
        "img_shapes": [[(1, 64, 64)]],
    }


def wan_inputs(device: torch.device) -> Inputs:
    """832 x 480, 33 frames: 14,040 tokens, which the words cross-attend to."""
    return {
        "hidden_states": noise(device, 1, 16, 9, 60, 104),
        "timestep": torch.full((1,), 500, device=device, dtype=torch.int64),
        "encoder_hidden_states": noise(device, 1, TEXT_TOKENS, 4096),
    }


def noise(device: torch.device, *shape: int) -> torch.Tensor:
    """Normal values in the compute type."""
    return torch.randn(*shape, device=device, dtype=torch.bfloat16)


MEGAPIXEL = plan_pb2.Workload(width=1024, height=1024, batch_size=1, num_frames=1)
CLIP = plan_pb2.Workload(width=832, height=480, batch_size=1, num_frames=33)
MODELS = {
    "flux.1-dev": Model("flux.1-dev", "flux.1", "t5-xxl", "flux.1-vae", MEGAPIXEL, (1, 16, 128, 128), flux_inputs),
    "z-image": Model(
        "z-image-turbo",
        "z-image",
        "qwen3-4b",
        "flux.1-vae",
        MEGAPIXEL,
        (1, 16, 128, 128),
        z_image_inputs,
        keeps_hidden_states=True,
    ),
    "qwen-image": Model(
        "qwen-image",
        "qwen-image",
        "qwen2.5-vl-7b",
        "qwen-image-vae",
        MEGAPIXEL,
        (1, 16, 1, 128, 128),
        qwen_inputs,
        True,
    ),
    "wan-14b": Model("wan2.2-t2v-a14b", "wan2.2-a14b", "umt5-xxl", "wan2.1-vae", CLIP, (1, 16, 9, 60, 104), wan_inputs),
}
