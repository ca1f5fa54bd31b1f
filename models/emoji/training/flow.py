"""Rectified flow: the training loss of the denoiser, and the sampler that undoes it.

Conventions are FluxPipeline's, so that its stock sampler works: x_s = (1 - s) x0 + s noise, the
network predicts noise - x0, the timestep passed is s. Source: Liu et al. 2022 (arXiv 2209.03003);
logit-normal times: Esser et al. 2024 (arXiv 2403.03206), section 3.1.

Does not know optimizers or data. Legend: B batch, L image tokens, D channels, T text tokens.
Invariant: `sample` gives what FluxPipeline gives for the same noise (a test compares them).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch
from diffusers import FluxTransformer2DModel
from torch import nn
from transformers import CLIPTextModel, T5EncoderModel

from models.emoji.training.shapes import MAX_TOKENS, Shape, build_clip, build_t5, build_transformer

TIME_MEAN, TIME_STD = 0.3, 1.2
"""Mean and deviation of the logit of s: a little more noise than s = 1/2 on average, because at
high noise the network must know the picture from its name alone."""


@dataclass(frozen=True)
class Words:
    """Token ids of some captions for both encoders: int64 (B, T) each."""

    t5: torch.Tensor
    clip: torch.Tensor


class TextToVelocity(nn.Module):
    """Both text encoders and the denoiser as one trainable module."""

    def __init__(self, transformer: FluxTransformer2DModel, t5: T5EncoderModel, clip: CLIPTextModel) -> None:
        super().__init__()
        self.transformer, self.t5, self.clip = transformer, t5, clip

    @classmethod
    def fresh(cls, shape: Shape) -> TextToVelocity:
        """Untrained networks of the given sizes."""
        return cls(build_transformer(shape), build_t5(shape), build_clip(shape))

    def forward(
        self, noisy_BLD: torch.Tensor, s_B: torch.Tensor, t5_BT: torch.Tensor, clip_BT: torch.Tensor
    ) -> torch.Tensor:
        """Predicted velocity (B, L, D)."""
        side = int(noisy_BLD.size(1) ** 0.5)
        return self.transformer(
            hidden_states=noisy_BLD,
            encoder_hidden_states=self.t5(input_ids=t5_BT)[0],
            pooled_projections=self.clip(input_ids=clip_BT).pooler_output,
            timestep=s_B,
            img_ids=image_ids(side, noisy_BLD.device),
            txt_ids=torch.zeros(MAX_TOKENS, 3, device=noisy_BLD.device),
            guidance=None,
            return_dict=False,
        )[0]


def image_ids(side: int, device: torch.device) -> torch.Tensor:
    """Rotary positions (side * side, 3) with the row in column 1 and the column in column 2."""
    rows = torch.arange(side, device=device).repeat_interleave(side)
    columns = torch.arange(side, device=device).repeat(side)
    return torch.stack([torch.zeros_like(rows), rows, columns], dim=1).float()


def flow_loss(
    model: nn.Module, clean_BLD: torch.Tensor, noise_BLD: torch.Tensor, s_B: torch.Tensor,
    t5_BT: torch.Tensor, clip_BT: torch.Tensor,
) -> torch.Tensor:  # fmt: skip
    """Mean squared error of the velocity."""
    s = s_B[:, None, None]
    noisy = (1 - s) * clean_BLD + s * noise_BLD
    velocity = model(noisy, s_B, t5_BT, clip_BT)
    return (velocity.float() - (noise_BLD - clean_BLD)).square().mean()


def draw_times(count: int, device: torch.device) -> torch.Tensor:
    """Noise levels s in (0, 1), logit-normal."""
    return torch.sigmoid(torch.randn(count, device=device) * TIME_STD + TIME_MEAN)


def sigmas(num_steps: int, shift: float) -> list[float]:
    """Noise levels of FluxPipeline with a static shift, from 1 to 0."""
    even = [1 - i * (1 - 1 / num_steps) / max(1, num_steps - 1) for i in range(num_steps)]
    return [shift * s / (1 + (shift - 1) * s) for s in even] + [0.0]


@torch.no_grad()
def sample(
    model: TextToVelocity, noise_BLD: torch.Tensor, words: Words, empty: Words,
    num_steps: int = 20, guidance: float = 3.0, shift: float = 2.0,
) -> torch.Tensor:  # fmt: skip
    """Euler steps with classifier-free guidance against the empty caption: latents (B, L, D)."""
    count = len(noise_BLD)
    t5 = torch.cat([words.t5, empty.t5.expand(count, -1)])
    clip = torch.cat([words.clip, empty.clip.expand(count, -1)])
    x = noise_BLD
    levels = sigmas(num_steps, shift)
    for s, following in pairwise(levels):
        times = torch.full((2 * count,), s, device=x.device)
        told, untold = model(torch.cat([x, x]), times, t5, clip).float().chunk(2)
        x = x + (following - s) * (untold + guidance * (told - untold))
    return x
