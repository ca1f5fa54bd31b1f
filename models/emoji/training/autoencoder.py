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

import torch
from diffusers import AutoencoderKL
from torch.nn import functional

from models.emoji.training import ranks
from models.emoji.training.checkpoint import load_checkpoint, save_checkpoint
from models.emoji.training.muon import Muon
from models.emoji.training.pacing import Pace, add_budget_arguments, trapezoid
from models.emoji.training.progress import bar
from models.emoji.training.shapes import PRESETS, build_autoencoder
from models.emoji.training.streams import PictureStream
from models.emoji.training.workspace import add_work_argument

KL_WEIGHT = 4e-3
KL_RAMP = 8
"""The KL term grows over the first eighth of the run."""
HALF_SIZE_SHARE, HALF_SIZE_WEIGHT = 8, 0.25
CHECKPOINT_SECONDS = 60.0
LOG_STEPS = 250
WARMUP = 0.03


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
def measure(vae: AutoencoderKL, stream: PictureStream, num_batches: int, size: int) -> dict[str, float]:
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


def save_autoencoder(vae: AutoencoderKL, facts: dict[str, float], folder: Path) -> None:
    """Write a diffusers folder in bf16 with the latent statistics in its config."""
    vae.register_to_config(
        scaling_factor=round(facts["scaling_factor"], 4),
        shift_factor=round(facts["shift_factor"], 4),
    )
    copy = AutoencoderKL.from_config(vae.config).to(torch.bfloat16)
    copy.load_state_dict(vae.state_dict())
    copy.save_pretrained(folder)


class Run:
    """State of one training run: autoencoder, optimizers, data and position."""

    def __init__(self, options: argparse.Namespace, device: torch.device) -> None:
        self.options, self.device, self.work = options, device, options.work
        shape = PRESETS[options.shape]
        torch.manual_seed(0)
        self.vae = build_autoencoder(shape).to(device)
        self.optimizers = make_optimizers(self.vae, options.lr, options.muon_lr)
        self.peaks = [optimizer.param_groups[0]["lr"] for optimizer in self.optimizers]
        self.pace = Pace(options.steps, options.seconds)
        self.resume()
        self.gradients = ranks.FlatGradients(list(self.vae.parameters()))
        self.loss_of = AutoencoderLoss(self.vae, device.type == "cuda" and not options.eager)
        torch.manual_seed(1000 + ranks.rank() + self.pace.step)
        seed = ranks.rank() + self.pace.step
        self.stream = PictureStream(self.work, shape.canvas_px, device, seed)

    def resume(self) -> None:
        """Continue from autoencoder.pt, if there."""
        saved = load_checkpoint(self.work / "autoencoder.pt", self.device)
        if saved:
            self.vae.load_state_dict(saved["vae"])
            for optimizer, state in zip(self.optimizers, saved["optimizers"], strict=True):
                optimizer.load_state_dict(state)
            self.pace.restore(saved["step"], saved["trained_s"])

    def checkpoint(self) -> None:
        """Write the resumable state (rank 0 only)."""
        if ranks.rank() == 0:
            state = {
                "vae": self.vae.state_dict(),
                "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
                "step": self.pace.step,
                "trained_s": self.pace.elapsed_s(),
            }
            save_checkpoint(self.work / "autoencoder.pt", state)

    def step(self) -> torch.Tensor:
        """One batch, one averaged gradient, one optimizer step; returns the L1 of this rank."""
        factor = trapezoid(self.pace.share, WARMUP, self.options.decay)
        for optimizer, peak in zip(self.optimizers, self.peaks, strict=True):
            optimizer.param_groups[0]["lr"] = peak * factor
        pixels = self.stream.batch(self.options.batch)
        self.gradients.zero()
        with torch.autocast(pixels.device.type, torch.bfloat16, enabled=pixels.is_cuda):
            loss, l1 = self.loss_of(pixels, KL_WEIGHT * min(1, self.pace.share * KL_RAMP))
        loss.backward()
        self.gradients.average()
        self.gradients.clip(1.0)
        for optimizer in self.optimizers:
            optimizer.step()
        self.pace.advance()
        return l1

    def train(self) -> None:
        """Train until the budget is spent, then measure and save."""
        with bar() as progress:
            task = progress.add_task("autoencoder", total=1000, note="")
            while self.pace.is_running(self.device):
                l1 = self.step()
                if not self.pace.is_clock_running:
                    l1.item()  # wait for compilation, then start the clock
                    self.pace.start_clock()
                if self.pace.step % LOG_STEPS == 0:
                    note = f"step {self.pace.step} L1 {l1.item():.4f}"
                    progress.update(task, completed=int(1000 * self.pace.share), note=note)
                if self.pace.is_checkpoint_due(CHECKPOINT_SECONDS, self.device):
                    self.checkpoint()
        self.checkpoint()
        self.finish()

    def finish(self) -> None:
        """Measure the autoencoder and write its folder."""
        self.vae.eval()
        facts = measure(self.vae, self.stream, 4, self.options.batch)
        if ranks.rank() == 0:
            save_autoencoder(self.vae, facts, self.work / "vae")
            rounded = {name: round(value, 4) for name, value in facts.items()}
            print({"step": self.pace.step, **rounded}, flush=True)


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
    Run(options, ranks.join()).train()
    ranks.leave()


if __name__ == "__main__":
    main()
