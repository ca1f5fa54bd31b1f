"""Stage 3: train the autoencoder, pixels <-> latents, on random compositions of the picture set.

Loss (all on [-1, 1] pixels): L1, L1 of horizontal and vertical differences, L1 at 1/2 and 1/4
scale, a small KL term, and "decode(half-size latent) = half-size picture" on an eighth of the batch,
which keeps latents smooth for the denoiser (Kouzelis et al. 2025, EQ-VAE, arXiv 2502.09509).
No perceptual network: none is free of pretrained weights.

Writes ``vae/`` in the work folder, with scaling_factor and shift_factor set so that latents have
mean 0 and variance 1. Continues from ``autoencoder.pt``. Several GPUs: start with torchrun.
Invariant: every latent channel is used; the stage prints the smallest channel deviation.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from diffusers import AutoencoderKL
from torch.nn import functional

from models.emoji.training import ranks
from models.emoji.training.checkpoint import load_checkpoint, save_checkpoint
from models.emoji.training.compose import Sprites, compose
from models.emoji.training.muon import Muon
from models.emoji.training.pacing import Pace, add_budget_arguments, trapezoid
from models.emoji.training.pictures import load_index, load_pixels
from models.emoji.training.pixel_art import pixelate
from models.emoji.training.progress import bar
from models.emoji.training.scenes import draw_scenes
from models.emoji.training.shapes import PRESETS, Shape, build_autoencoder
from models.emoji.training.workspace import add_work_argument

KL_WEIGHT = 4e-3
HALF_SIZE_SHARE, HALF_SIZE_WEIGHT = 8, 0.25
PIXEL_ART_SHARE = 12
CHECKPOINT_SECONDS = 60.0
LOG_STEPS = 250
WARMUP = 0.03


class PictureStream:
    """Endless random batches of composed pictures."""

    def __init__(self, work: Path, shape: Shape, device: torch.device, seed: int) -> None:
        pictures = load_index(work / "pictures.zip")
        self.sprites = Sprites(load_pixels(work / "pictures.zip"), device, shape.canvas_px)
        self.scenes = draw_scenes(pictures, 32, seed=1)
        self.rng = np.random.default_rng(seed)

    def batch(self, size: int) -> torch.Tensor:
        """Pictures (size, 3, H, W) in [-1, 1]: shifted as a whole, some recoloured or pixelated."""
        pixels = compose(self.sprites, self.scenes, self.rng.integers(len(self.scenes), size=size))
        side = pixels.size(-1)
        shift = self.rng.integers(-side // 16, side // 16 + 1, size=2)
        pixels = torch.roll(pixels, tuple(int(s) for s in shift), dims=(2, 3))
        if self.rng.random() < 0.25:
            pixels = pixels[:, torch.randperm(3)]
        num_pixelated = size // PIXEL_ART_SHARE
        pixels[:num_pixelated] = pixelate(pixels[:num_pixelated])
        return pixels.contiguous(memory_format=torch.channels_last)


def reconstruction_loss(decoded: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """L1 + L1 of differences + 0.5 x L1 at half and quarter scale."""
    loss = functional.l1_loss(decoded, target)
    for dim in (2, 3):
        loss = loss + functional.l1_loss(decoded.diff(dim=dim), target.diff(dim=dim))
    for factor in (2, 4):
        small = functional.avg_pool2d(decoded, factor), functional.avg_pool2d(target, factor)
        loss = loss + 0.5 * functional.l1_loss(*small)
    return loss


class AutoencoderLoss(torch.nn.Module):
    """One training forward of the autoencoder."""

    def __init__(self, vae: AutoencoderKL, is_compiled: bool) -> None:
        super().__init__()
        self.vae = vae
        self.encode, self.decode = vae.encoder.forward, vae.decoder.forward
        if is_compiled:
            self.encode = torch.compile(vae.encoder, dynamic=False)
            self.decode = torch.compile(vae.decoder, dynamic=False)

    def forward(self, pixels: torch.Tensor, kl_weight: float) -> tuple[torch.Tensor, torch.Tensor]:
        """Return (loss, L1 of the reconstruction)."""
        mean, log_variance = self.encode(pixels).float().chunk(2, dim=1)
        log_variance = log_variance.clamp(-20, 10)
        latents = mean + torch.randn_like(mean) * (0.5 * log_variance).exp()
        decoded = self.decode(latents).float()
        kl = 0.5 * (mean.square() + log_variance.exp() - 1 - log_variance).mean()
        loss = reconstruction_loss(decoded, pixels) + kl_weight * kl
        few = max(1, len(pixels) // HALF_SIZE_SHARE)
        half = self.vae.decoder(functional.avg_pool2d(latents[:few], 2)).float()
        smaller = functional.avg_pool2d(pixels[:few], 2)
        loss = loss + HALF_SIZE_WEIGHT * functional.l1_loss(half, smaller)
        return loss, functional.l1_loss(decoded.detach(), pixels)


def make_optimizers(vae: AutoencoderKL, lr: float, muon_lr: float) -> list[torch.optim.Optimizer]:
    """Muon for convolution kernels, AdamW for the first and last kernels, norms and biases."""
    ends = ("encoder.conv_in.", "decoder.conv_out.")
    named = list(vae.named_parameters())
    kernels = [p for name, p in named if p.ndim == 4 and not name.startswith(ends)]
    known = {id(p) for p in kernels}
    others = [p for _, p in named if id(p) not in known]
    return [
        Muon(kernels, lr=muon_lr),
        torch.optim.AdamW(others, lr=lr, betas=(0.9, 0.99), weight_decay=0.0),
    ]


@torch.no_grad()
def measure(vae: AutoencoderKL, stream: PictureStream, num_batches: int, size: int) -> dict:
    """PSNR of reconstructions ([0, 1] scale, posterior mean) and the statistics of latents."""
    psnrs, latents = [], []
    for _ in range(num_batches):
        pixels = stream.batch(size)
        mean = vae.encode(pixels).latent_dist.mean
        error = ((vae.decode(mean).sample.clamp(-1, 1) - pixels) / 2).square()
        psnrs.append(-10 * torch.log10(error.mean(dim=(1, 2, 3)) + 1e-10))
        latents.append(mean.float())
    z = torch.cat(latents)
    return {
        "psnr_db": float(torch.cat(psnrs).mean()),
        "shift_factor": float(z.mean()),
        "scaling_factor": float(1 / z.std()),
        "smallest_channel_std": float(z.std(dim=(0, 2, 3)).min()),
    }


def save_autoencoder(vae: AutoencoderKL, facts: dict, folder: Path) -> None:
    """Write a diffusers folder in bf16 with the latent statistics in its config."""
    vae.register_to_config(
        scaling_factor=round(facts["scaling_factor"], 4),
        shift_factor=round(facts["shift_factor"], 4),
    )
    copy = AutoencoderKL.from_config(vae.config).to(torch.bfloat16)
    copy.load_state_dict(vae.state_dict())
    copy.save_pretrained(folder)


def train(options: argparse.Namespace, device: torch.device) -> None:
    """Run the stage on this rank."""
    shape = PRESETS[options.shape]
    torch.manual_seed(0)
    vae = build_autoencoder(shape).to(device)
    optimizers = make_optimizers(vae, options.lr, options.muon_lr)
    peaks = [optimizer.param_groups[0]["lr"] for optimizer in optimizers]
    pace = Pace(options.steps, options.seconds)
    saved = load_checkpoint(options.work / "autoencoder.pt", device)
    if saved:
        vae.load_state_dict(saved["vae"])
        for optimizer, state in zip(optimizers, saved["optimizers"], strict=True):
            optimizer.load_state_dict(state)
        pace.restore(saved["step"], saved["trained_s"])
    gradients = ranks.FlatGradients(list(vae.parameters()))
    loss_of = AutoencoderLoss(vae, device.type == "cuda" and not options.eager)
    torch.manual_seed(1000 + ranks.rank() + pace.step)
    stream = PictureStream(options.work, shape, device, seed=ranks.rank() + pace.step)

    def checkpoint() -> None:
        if ranks.rank() == 0:
            state = {"vae": vae.state_dict(), "step": pace.step, "trained_s": pace.elapsed_s(),
                     "optimizers": [o.state_dict() for o in optimizers]}  # fmt: skip
            save_checkpoint(options.work / "autoencoder.pt", state)

    with bar() as progress:
        task = progress.add_task("autoencoder", total=1000, note="")
        while pace.is_running(device):
            l1 = step(options, pace, stream, loss_of, gradients, optimizers, peaks)
            if pace._started_at is None:
                l1.item()  # wait for compilation, then start the clock
                pace.start_clock()
            if pace.step % LOG_STEPS == 0:
                note = f"step {pace.step} L1 {l1.item():.4f} at {pace.elapsed_s():.0f} s"
                progress.update(task, completed=int(1000 * pace.share), note=note)
                if ranks.rank() == 0:
                    print(note, flush=True)
            if pace.is_checkpoint_due(CHECKPOINT_SECONDS, device):
                checkpoint()
    checkpoint()
    vae.eval()
    facts = measure(vae, stream, 4, options.batch)
    if ranks.rank() == 0:
        save_autoencoder(vae, facts, options.work / "vae")
        print({"step": pace.step, **{k: round(v, 4) for k, v in facts.items()}}, flush=True)


def step(
    options: argparse.Namespace, pace: Pace, stream: PictureStream, loss_of: AutoencoderLoss,
    gradients: ranks.FlatGradients, optimizers: list[torch.optim.Optimizer], peaks: list[float],
) -> torch.Tensor:  # fmt: skip
    """One batch, one averaged gradient, one optimizer step; returns the L1 of this rank."""
    factor = trapezoid(pace.share, WARMUP, options.decay)
    for optimizer, peak in zip(optimizers, peaks, strict=True):
        optimizer.param_groups[0]["lr"] = peak * factor
    pixels = stream.batch(options.batch)
    gradients.zero()
    with torch.autocast(pixels.device.type, torch.bfloat16, enabled=pixels.is_cuda):
        loss, l1 = loss_of(pixels, KL_WEIGHT * min(1, pace.share * 8))
    loss.backward()
    gradients.average()
    gradients.clip(1.0)
    for optimizer in optimizers:
        optimizer.step()
    pace.advance()
    return l1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_work_argument(parser)
    add_budget_arguments(parser, steps=100_000, seconds=220)
    parser.add_argument("--shape", choices=PRESETS, default="emoji", help="size preset")
    parser.add_argument("--batch", type=int, default=64, help="pictures a rank (%(default)s)")
    parser.add_argument("--lr", type=float, default=1e-3, help="AdamW (%(default)s)")
    parser.add_argument("--muon-lr", type=float, default=5e-3, help="kernels (%(default)s)")
    parser.add_argument("--decay", type=float, default=0.6, help="last share (%(default)s)")
    parser.add_argument("--eager", action="store_true", help="do not compile")
    options = parser.parse_args()
    train(options, ranks.join())
    ranks.leave()


if __name__ == "__main__":
    main()
