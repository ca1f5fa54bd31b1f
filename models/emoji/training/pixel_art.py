"""Pixel art: make it from any picture, and measure how much of it a picture is.

Does not know models. Pixels are float (B, 3, H, W) in [-1, 1].
Invariant: on its own output, `pixelness` is 1.
"""

from __future__ import annotations

import torch
from torch.nn import functional

GRID = 32
"""Blocks a side: 4 px blocks on a 128 px canvas."""
LEVELS = 6
"""Values a colour channel may take, so 216 colours at most."""


def pixelate(pixels_BCHW: torch.Tensor, grid: int = GRID) -> torch.Tensor:
    """Reduce to `grid` x `grid` blocks of few colours, at the same size.

    The flat background keeps its exact colour: it is asked for by name, so only blocks that differ
    from the corner are reduced to `LEVELS` values a channel.
    """
    grid = min(grid, pixels_BCHW.size(-1) // 2)
    side = pixels_BCHW.shape[-2:]
    small = functional.interpolate(pixels_BCHW, (grid, grid), mode="area")
    levels = LEVELS - 1
    reduced = ((small + 1) / 2 * levels).round() / levels * 2 - 1
    corner = pixels_BCHW[:, :, :1, :1]
    is_background = (small - corner).abs().amax(dim=1, keepdim=True) < 0.04
    return functional.interpolate(torch.where(is_background, corner, reduced), side, mode="nearest")


def pixelness(pixels_BCHW: torch.Tensor, grid: int = GRID) -> torch.Tensor:
    """Share of all horizontal and vertical change that lies on the block borders: (B,).

    1 for perfect pixel art; about one over the block size (0.25 at 4 px) for any other picture.
    """
    block = pixels_BCHW.size(-1) // grid
    on_border = total = torch.zeros(len(pixels_BCHW), device=pixels_BCHW.device)
    for dim in (2, 3):
        change = pixels_BCHW.diff(dim=dim).abs().sum(dim=(1, 5 - dim))
        total = total + change.sum(dim=1)
        on_border = on_border + change[:, block - 1 :: block].sum(dim=1)
    return on_border / total.clamp(min=1e-6)
