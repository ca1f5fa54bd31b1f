"""Stage 7: train a LoRA that turns every picture into pixel art.

The scenes are the model's own, reduced by `pixel_art.pixelate`. Captions keep the picture's style;
most captions of flat pictures say "pixel art style" instead. Never those of both styles: then the
words would mean two pictures, and what is painted is a mixture (the shipped adapter has this fault).
Only low-rank matrices in the denoiser are trained. Writes a file that
``pipe.load_lora_weights(folder)`` reads; at rank 8 it takes 0.7 MiB.

Invariant: the base weights are not touched; removing the adapter gives the old pictures back.
"""

from __future__ import annotations

import argparse
import random
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from diffusers import AutoencoderKL, FluxPipeline
from peft import LoraConfig, get_peft_model_state_dict

from models.emoji.training import ranks
from models.emoji.training.captions import Wish, caption
from models.emoji.training.compose import Scenes, Sprites, compose
from models.emoji.training.export import load_networks
from models.emoji.training.flow import TextToVelocity, draw_times, flow_loss
from models.emoji.training.latents import encode, load_tokenizers, tokenize
from models.emoji.training.pacing import Pace, add_budget_arguments, trapezoid
from models.emoji.training.pictures import Picture, load_index, load_pixels
from models.emoji.training.pixel_art import pixelate
from models.emoji.training.progress import bar, track
from models.emoji.training.scenes import draw_scenes, wish_of
from models.emoji.training.shapes import PRESETS
from models.emoji.training.workspace import MODEL_FOLDER, add_work_argument

STYLE = "pixel art"
STYLE_SHARE = 0.7
EMPTY_SHARE = 0.1
LOG_STEPS = 100
TARGETS = [
    "to_q", "to_k", "to_v", "to_out.0", "add_q_proj", "add_k_proj", "add_v_proj", "to_add_out",
    "proj_mlp", "proj_out", "ff.net.0.proj", "ff.net.2",
]  # fmt: skip


def pixel_captions(scenes: Scenes, pictures: list[Picture], seed: int = 11) -> list[str]:
    """One caption a scene; most of flat pictures say "pixel art style"."""
    rng = random.Random(seed)
    texts = []
    for row in range(len(scenes)):
        wish = wish_of(scenes, row, pictures, rng)
        if wish.style == "flat" and rng.random() < STYLE_SHARE:
            wish = Wish(**{**vars(wish), "style": STYLE})
        texts.append("" if rng.random() < EMPTY_SHARE else caption(wish, rng))
    return texts


def pixel_latents(work: Path, vae: AutoencoderKL, scenes: Scenes, device: torch.device) -> torch.Tensor:
    """Latents of the reduced scenes: bf16 (N, L, D) on the device."""
    sprites = Sprites(load_pixels(work / "pictures.zip"), device, vae.config.sample_size)
    chunks = np.array_split(np.arange(len(scenes)), max(1, len(scenes) // 256))
    return torch.cat(
        [
            encode(vae, pixelate(compose(sprites, scenes, rows))).bfloat16()
            for rows in track(chunks, "encoding pixel art")
        ]
    )


def add_adapter(networks: TextToVelocity, lora_rank: int) -> list[torch.nn.Parameter]:
    """Freeze everything, add the low-rank matrices, return them."""
    networks.requires_grad_(False)
    networks.transformer.add_adapter(
        LoraConfig(r=lora_rank, lora_alpha=lora_rank, init_lora_weights="gaussian", target_modules=TARGETS)
    )
    return [p for p in networks.transformer.parameters() if p.requires_grad]


@dataclass(frozen=True)
class PixelScenes:
    """Latents and caption ids of the reduced scenes, on one device."""

    latents: torch.Tensor
    t5: torch.Tensor
    clip: torch.Tensor

    @classmethod
    def load(cls, work: Path, num_versions: int, device: torch.device) -> PixelScenes:
        """Compose, reduce and encode `num_versions` scenes of every picture."""
        vae = AutoencoderKL.from_pretrained(work / "vae").to(device).eval()
        pictures = load_index(work / "pictures.zip")
        scenes = draw_scenes(pictures, num_versions, seed=3)
        texts = pixel_captions(scenes, pictures)
        ids = [tokenize(tokenizer, texts).to(device) for tokenizer in load_tokenizers(work)]
        return cls(pixel_latents(work, vae, scenes, device), *ids)

    def loss(self, networks: TextToVelocity, batch: int) -> torch.Tensor:
        """Flow loss of random scenes."""
        device = self.latents.device
        rows = torch.randint(len(self.latents), (batch,), device=device)
        clean = self.latents[rows].float()
        noise, times = torch.randn_like(clean), draw_times(batch, device)
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            return flow_loss(networks, clean, noise, times, self.t5[rows].long(), self.clip[rows].long())


def train(options: argparse.Namespace, device: torch.device) -> None:
    """Run the stage (one device)."""
    torch.manual_seed(0)
    networks = load_networks(options.work, PRESETS[options.shape]).float().to(device)
    scenes = PixelScenes.load(options.work, options.versions, device)
    trainable = add_adapter(networks, options.rank)
    optimizer = torch.optim.AdamW(trainable, lr=options.lr, weight_decay=0.0)
    pace = Pace(options.steps, options.seconds)
    pace.start_clock()
    with bar() as progress:
        task = progress.add_task("adapter", total=1000, note="")
        while pace.is_running(device):
            optimizer.param_groups[0]["lr"] = options.lr * trapezoid(pace.share, 0.03, 0.5)
            loss = scenes.loss(networks, options.batch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            pace.advance()
            if pace.step % LOG_STEPS == 0:
                note = f"step {pace.step} loss {loss.item():.4f}"
                progress.update(task, completed=int(1000 * pace.share), note=note)
    print(f"adapter: {pace.step} steps", flush=True)
    save_adapter(networks, options.output)


def save_adapter(networks: TextToVelocity, folder: Path) -> None:
    """Write the low-rank matrices in bf16 as ``pytorch_lora_weights.safetensors``."""
    state = get_peft_model_state_dict(networks.transformer)
    state = {name: tensor.detach().cpu().bfloat16() for name, tensor in state.items()}
    FluxPipeline.save_lora_weights(folder, transformer_lora_layers=state)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_work_argument(parser)
    add_budget_arguments(parser, steps=100_000, seconds=75)
    parser.add_argument("--shape", choices=PRESETS, default="emoji", help="size preset")
    parser.add_argument("--rank", type=int, default=8, help="LoRA rank (%(default)s)")
    parser.add_argument("--lr", type=float, default=1e-3, help="AdamW (%(default)s)")
    parser.add_argument("--batch", type=int, default=512, help="(%(default)s)")
    parser.add_argument("--versions", type=int, default=12, help="scenes a picture (%(default)s)")
    parser.add_argument(
        "--output", type=Path, default=MODEL_FOLDER / "adapters" / "pixel-art",
        help="folder of the LoRA (default: %(default)s)",
    )  # fmt: skip
    options = parser.parse_args()
    train(options, ranks.join())


if __name__ == "__main__":
    main()
