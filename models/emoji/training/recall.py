"""How many training pictures the denoiser paints from their caption, measured while it trains.

Latents of 256 fixed captions ("a NAME, STYLE style, white background") are sampled and the nearest
training picture is looked up, by squared distance of normalised latents, among all pictures of both
styles. Does not know the stock pipeline: `evaluate` measures that.
Invariant: captions and noise are the same at every call, so figures of one run compare.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from diffusers import AutoencoderKL
from PIL import Image
from safetensors.torch import load_file

from models.emoji.training.captions import Wish, prompt
from models.emoji.training.flow import TextToVelocity, Words, sample
from models.emoji.training.latents import decode, load_tokenizers, tokenize
from models.emoji.training.pictures import load_index

NUM_PROMPTS = 256
GRID_COLUMNS, GRID_ROWS = 12, 6


@dataclass(frozen=True)
class Recall:
    """Shares of prompts whose subject is the nearest, or among the five nearest pictures."""

    nearest: float
    among_five: float


class RecallProbe:
    """The fixed prompts, noise and references of one run."""

    def __init__(self, work: Path, device: torch.device) -> None:
        self.pictures = load_index(work / "pictures.zip")
        self.vae = AutoencoderKL.from_pretrained(work / "vae").to(device).eval()
        self.references = load_file(work / "references.safetensors", device=str(device))["references"]
        rng = np.random.default_rng(5)
        count = min(NUM_PROMPTS, len(self.pictures))
        self.rows = rng.choice(len(self.pictures), count, replace=False)
        chosen = [self.pictures[row] for row in self.rows]
        self.prompts = [prompt(Wish(str(rng.choice(p.names)), p.style)) for p in chosen]
        self.words = words_of(work, self.prompts, device)
        self.empty = words_of(work, [""], device)
        generator = torch.Generator().manual_seed(5)
        shape = (count, *self.references.shape[1:])
        self.noise = torch.randn(shape, generator=generator).to(device)

    def measure(self, model: TextToVelocity, picture_file: Path | None = None) -> Recall:
        """Sample all prompts; optionally save the first ones as a PNG grid."""
        enabled = self.noise.is_cuda
        with torch.autocast(self.noise.device.type, torch.bfloat16, enabled=enabled):
            latents = sample(model, self.noise, self.words, self.empty)
        distances = torch.cdist(latents.flatten(1), self.references.float().flatten(1))
        nearest = distances.topk(min(5, len(self.pictures)), largest=False).indices.cpu().numpy()
        codes = np.array([picture.code for picture in self.pictures])
        hits = codes[nearest] == codes[self.rows][:, None]
        if picture_file:
            save_grid(decode(self.vae, latents[: GRID_COLUMNS * GRID_ROWS]), picture_file)
        return Recall(float(hits[:, 0].mean()), float(hits.any(axis=1).mean()))


def words_of(work: Path, texts: list[str], device: torch.device) -> Words:
    """Token ids of some captions on a device."""
    t5, clip = load_tokenizers(work)
    return Words(tokenize(t5, texts).long().to(device), tokenize(clip, texts).long().to(device))


def save_grid(pixels_BCHW: torch.Tensor, path: Path, columns: int = GRID_COLUMNS) -> None:
    """Write pictures ([-1, 1]) as one PNG, row by row."""
    pixels = ((pixels_BCHW + 1) * 127.5).round().clamp(0, 255).byte().cpu()
    rows = [torch.cat(list(row), dim=2) for row in pixels.split(columns) if len(row) == columns]
    if rows:
        Image.fromarray(torch.cat(rows, dim=1).permute(1, 2, 0).numpy()).save(path)
