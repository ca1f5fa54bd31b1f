"""Stage 5: train the denoiser and both text encoders together, from nothing.

Every step takes random scenes from the latent cache with one of their captions, a tenth of them
with the empty caption (for guidance). Hidden matrices are trained with Muon, the rest with AdamW;
the learning rate is a trapezoid; the exported weights are the moving average.

Continues from ``denoiser.pt``; every checkpoint also writes ``weights.safetensors`` (the average in
bf16, what `export` reads), a preview grid and the recall. Several GPUs: start with torchrun.
Invariant: all ranks hold equal weights; they differ only in the batches they draw.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import nn

from models.emoji.training import ranks
from models.emoji.training.averaging import MovingAverage
from models.emoji.training.checkpoint import load_checkpoint, save_checkpoint
from models.emoji.training.flow import TextToVelocity, draw_times, flow_loss
from models.emoji.training.muon import Muon
from models.emoji.training.pacing import Pace, add_budget_arguments, trapezoid
from models.emoji.training.progress import bar
from models.emoji.training.recall import RecallProbe
from models.emoji.training.shapes import PRESETS, is_modulation
from models.emoji.training.streams import SceneStream
from models.emoji.training.workspace import add_work_argument

LOG_STEPS = 500


def is_hidden_matrix(name: str, parameter: nn.Parameter) -> bool:
    """Whether Muon trains it: linear weights inside blocks, not embeddings, modulation or ends."""
    inside = any(key in name for key in ("transformer_blocks.", ".block.", ".layers."))
    excluded = is_modulation(name) or "relative_attention_bias" in name or "embed" in name
    return parameter.ndim == 2 and inside and not excluded


def make_optimizers(model: nn.Module, lr: float, muon_lr: float) -> list[torch.optim.Optimizer]:
    """Muon for hidden matrices, AdamW for everything else."""
    named = list(model.named_parameters())
    hidden = [p for name, p in named if is_hidden_matrix(name, p)]
    known = {id(p) for p in hidden}
    others = [p for _, p in named if id(p) not in known]
    fused = others[0].is_cuda
    return [
        Muon(hidden, lr=muon_lr, weight_decay=0.02),
        torch.optim.AdamW(others, lr=lr, betas=(0.9, 0.98), weight_decay=0.01, fused=fused),
    ]


def compiled(model: TextToVelocity, how: str) -> nn.Module:
    """'whole' compiles everything as one graph, 'parts' the denoiser only, 'none' nothing."""
    if how == "whole":
        return torch.compile(model, dynamic=False)
    if how == "parts":
        model.transformer.compile(dynamic=False)
    return model


class Run:
    """State of one training run: model, average, optimizers and position."""

    def __init__(self, options: argparse.Namespace, device: torch.device) -> None:
        self.options, self.device, self.work = options, device, options.work
        torch.manual_seed(0)
        self.model = TextToVelocity.fresh(PRESETS[options.shape]).to(device)
        self.optimizers = make_optimizers(self.model, options.lr, options.muon_lr)
        self.peaks = [o.param_groups[0]["lr"] for o in self.optimizers]
        self.pace = Pace(options.steps, options.seconds)
        self.average = MovingAverage(self.model, options.ema)
        self.resume()
        self.gradients = ranks.FlatGradients(list(self.model.parameters()))
        ranks.share_weights(self.model)
        torch.manual_seed(1 + ranks.rank() + 1000 * self.pace.step)

    def resume(self) -> None:
        """Continue from denoiser.pt, or start from --init weights, or from nothing."""
        saved = load_checkpoint(self.work / "denoiser.pt", self.device)
        if saved:
            self.model.load_state_dict(saved["model"])
            self.average.load(saved["average"])
            for optimizer, state in zip(self.optimizers, saved["optimizers"], strict=True):
                optimizer.load_state_dict(state)
            self.pace.restore(saved["step"], saved["trained_s"])
        elif self.options.init:
            weights = load_file(self.options.init, device=str(self.device))
            self.model.load_state_dict({k: v.float() for k, v in weights.items()}, strict=False)
            self.average.load(dict(self.model.named_parameters()))
            self.pace.restore(0, self.options.trained_s)

    def checkpoint(self) -> None:
        """Write the resumable state and the averaged weights (rank 0 only)."""
        if ranks.rank() != 0:
            return
        state = {
            "model": self.model.state_dict(),
            "average": self.average.weights,
            "optimizers": [o.state_dict() for o in self.optimizers],
            "step": self.pace.step,
            "trained_s": self.pace.elapsed_s(),
        }
        save_checkpoint(self.work / "denoiser.pt", state)
        weights = {name: w.bfloat16().contiguous() for name, w in self.average.weights.items()}
        aside = self.work / "weights.partial"
        save_file(weights, aside)
        aside.replace(self.work / "weights.safetensors")

    def preview(self, probe: RecallProbe) -> str:
        """Recall of the averaged weights, and a grid in the work folder."""
        live = {name: p.detach().clone() for name, p in self.model.named_parameters()}
        with torch.no_grad():
            for name, parameter in self.model.named_parameters():
                parameter.copy_(self.average.weights[name])
            recall = probe.measure(self.model, self.work / f"preview-{self.pace.step:06d}.png")
            for name, parameter in self.model.named_parameters():
                parameter.copy_(live[name])
        return f"recall@1 {recall.nearest:.3f} @5 {recall.among_five:.3f}"

    def step(self, model: nn.Module, stream: SceneStream) -> torch.Tensor:
        """One optimizer step; returns the loss of this rank."""
        factor = trapezoid(self.pace.share, self.options.warmup, self.options.decay)
        for optimizer, peak in zip(self.optimizers, self.peaks, strict=True):
            optimizer.param_groups[0]["lr"] = peak * factor
        batch = stream.batch(self.options.batch)
        self.gradients.zero()
        is_cuda = self.device.type == "cuda"
        with torch.autocast(self.device.type, torch.bfloat16, enabled=is_cuda):
            times = draw_times(len(batch.clean), self.device)
            noise = torch.randn_like(batch.clean)
            loss = flow_loss(model, batch.clean, noise, times, batch.t5, batch.clip)
        loss.backward()
        self.gradients.average()
        self.gradients.clip(1.0)
        for optimizer in self.optimizers:
            optimizer.step()
        self.pace.advance()
        self.average.update(self.pace.step)
        return loss.detach()

    def train(self) -> None:
        """Train until the budget is spent."""
        stream = SceneStream(self.work, self.device)
        probe = RecallProbe(self.work, self.device) if ranks.rank() == 0 else None
        model = compiled(self.model, self.options.compile)
        total = torch.zeros((), device=self.device)
        started_step = self.pace.step
        with bar() as progress:
            task = progress.add_task("denoiser", total=1000, note="")
            while self.pace.is_running(self.device):
                total += self.step(model, stream)
                if self.pace.step == started_step + 3:
                    total.item()  # wait for compilation, then start the clock
                    self.pace.start_clock()
                if self.pace.step % LOG_STEPS == 0:
                    completed = int(1000 * self.pace.share)
                    progress.update(task, completed=completed, note=self.note(total))
                    total.zero_()
                if self.pace.is_checkpoint_due(self.options.every, self.device):
                    self.save(probe)
        self.save(probe)

    def save(self, probe: RecallProbe | None) -> None:
        """Checkpoint and preview."""
        self.checkpoint()
        if probe is not None:
            line = f"step {self.pace.step} at {self.pace.elapsed_s():.0f} s: {self.preview(probe)}"
            print(line, flush=True)
        ranks.barrier()

    def note(self, total: torch.Tensor) -> str:
        """Print and return the mean loss and the throughput so far."""
        rate = self.pace.step * self.options.batch * ranks.num_ranks() / self.pace.elapsed_s()
        loss = total.item() / LOG_STEPS
        when = f"step {self.pace.step} at {self.pace.elapsed_s():.0f} s"
        text = f"{when}: loss {loss:.4f}, {rate:.0f} scenes/s"
        if ranks.rank() == 0:
            print(text, flush=True)
        return text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_work_argument(parser)
    add_budget_arguments(parser, steps=100_000, seconds=1000)
    parser.add_argument("--shape", choices=PRESETS, default="emoji", help="size preset")
    parser.add_argument("--batch", type=int, default=1024, help="scenes a rank (%(default)s)")
    parser.add_argument("--lr", type=float, default=1e-3, help="AdamW peak (%(default)s)")
    parser.add_argument("--muon-lr", type=float, default=3e-3, help="Muon peak (%(default)s)")
    parser.add_argument("--warmup", type=float, default=0.02, help="share (%(default)s)")
    parser.add_argument("--decay", type=float, default=0.35, help="last share (%(default)s)")
    parser.add_argument("--ema", type=float, default=0.9995, help="largest decay (%(default)s)")
    parser.add_argument("--every", type=float, default=120, help="checkpoint seconds (%(default)s)")
    parser.add_argument("--compile", choices=("whole", "parts", "none"), default="whole")
    parser.add_argument("--init", type=Path, help="weights.safetensors to start from")
    parser.add_argument("--trained-s", type=float, default=0.0, help="seconds behind --init")
    options = parser.parse_args()
    Run(options, ranks.join()).train()
    ranks.leave()


if __name__ == "__main__":
    main()
