"""Endless random batches: composed pictures for the autoencoder, cached scenes for the denoiser.

Does not know networks. Everything lives on the device; nothing is read from disk while training.
Invariant: two ranks with different seeds draw different batches of the same data.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file

from models.emoji.training.compose import Sprites, compose
from models.emoji.training.latents import NUM_CAPTIONS, load_latents
from models.emoji.training.pictures import load_index, load_pixels
from models.emoji.training.pixel_art import pixelate
from models.emoji.training.scenes import draw_scenes

PIXEL_ART_SHARE = 12
"""One of so many pictures is pixelated, so that the pixel-art adapter has sharp blocks to decode."""
RECOLOURED = 0.25
"""Share of batches with permuted colour channels."""
EMPTY_SHARE = 0.1
"""Share of captions replaced by the empty one, for guidance (Ho and Salimans 2022, 2207.12598)."""


class PictureStream:
    """Endless random batches of composed pictures."""

    def __init__(self, work: Path, canvas_px: int, device: torch.device, seed: int) -> None:
        pictures = load_index(work / "pictures.zip")
        self.sprites = Sprites(load_pixels(work / "pictures.zip"), device, canvas_px)
        self.scenes = draw_scenes(pictures, 32, seed=1)
        self.rng = np.random.default_rng(seed)

    def batch(self, size: int) -> torch.Tensor:
        """Pictures (size, 3, H, W) in [-1, 1]: shifted as a whole, some recoloured or pixelated."""
        pixels = compose(self.sprites, self.scenes, self.rng.integers(len(self.scenes), size=size))
        side = pixels.size(-1)
        shift = self.rng.integers(-side // 16, side // 16 + 1, size=2)
        pixels = torch.roll(pixels, tuple(int(s) for s in shift), dims=(2, 3))
        if self.rng.random() < RECOLOURED:
            pixels = pixels[:, torch.randperm(3)]
        num_pixelated = size // PIXEL_ART_SHARE
        pixels[:num_pixelated] = pixelate(pixels[:num_pixelated])
        return pixels.contiguous(memory_format=torch.channels_last)


@dataclass(frozen=True)
class Batch:
    """One rank's training examples of one step."""

    clean: torch.Tensor
    t5: torch.Tensor
    clip: torch.Tensor


class SceneStream:
    """The latent cache and the caption ids on one device."""

    def __init__(self, work: Path, device: torch.device) -> None:
        self.latents = load_latents(work, device)
        self.tokens = load_file(work / "tokens.safetensors", device=str(device))
        self.device = device

    def batch(self, size: int) -> Batch:
        """Random scenes, each with a random one of its captions; EMPTY_SHARE say nothing."""
        rows = torch.randint(len(self.latents), (size,), device=self.device)
        captions = rows * NUM_CAPTIONS
        captions += torch.randint(NUM_CAPTIONS, (size,), device=self.device)
        is_empty = (torch.rand(size, device=self.device) < EMPTY_SHARE)[:, None]
        ids = [
            torch.where(is_empty, self.tokens[f"{key}_empty"], self.tokens[key][captions]).long()
            for key in ("t5", "clip")
        ]
        return Batch(self.latents[rows].float(), *ids)
