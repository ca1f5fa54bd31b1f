"""Stage 4: encode every training scene once and tokenise its captions.

Writes into the work folder ``latents-R.safetensors`` (one a rank, FLUX tokens, normalised, bf16),
``references.safetensors`` (every picture plain on white, for recall during training) and
``tokens.safetensors`` (ids of all captions). Some 240 thousand scenes take 2 GB.

Legend: N scenes, K captions a scene, L tokens, D channels a token.
Invariant: row r of the latents and rows r*K .. r*K+K-1 of the tokens are the same scene.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from diffusers import AutoencoderKL
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer

from models.emoji.training import ranks
from models.emoji.training.compose import COLOUR_NAMES, NORMAL, Scenes, Sprites, compose
from models.emoji.training.pictures import Picture, load_index, load_pixels
from models.emoji.training.progress import track
from models.emoji.training.scenes import draw_captions, draw_scenes
from models.emoji.training.shapes import CLIP_EOS_ID, MAX_TOKENS, PAD_ID, PATCH
from models.emoji.training.workspace import add_work_argument

NUM_CAPTIONS = 2
ENCODE_BATCH = 256


def pack(latents_BCHW: torch.Tensor) -> torch.Tensor:
    """(B, C, H, W) -> (B, H/2 * W/2, 4C): FluxPipeline._pack_latents."""
    b, c, h, w = latents_BCHW.shape
    blocks = latents_BCHW.view(b, c, h // PATCH, PATCH, w // PATCH, PATCH)
    return blocks.permute(0, 2, 4, 1, 3, 5).reshape(b, -1, c * PATCH**2)


def unpack(tokens_BLD: torch.Tensor) -> torch.Tensor:
    """The inverse of `pack` for square latents."""
    b, length, d = tokens_BLD.shape
    side = int(length**0.5)
    blocks = tokens_BLD.view(b, side, side, d // PATCH**2, PATCH, PATCH)
    return blocks.permute(0, 3, 1, 4, 2, 5).reshape(b, d // PATCH**2, side * PATCH, side * PATCH)


@torch.no_grad()
def encode(vae: AutoencoderKL, pixels: torch.Tensor) -> torch.Tensor:
    """Pixels (B, 3, H, W) in [-1, 1] -> normalised packed latents (B, L, D), posterior mean."""
    with torch.autocast(pixels.device.type, torch.bfloat16, enabled=pixels.is_cuda):
        mean = vae.encode(pixels).latent_dist.mean.float()
    return pack((mean - vae.config.shift_factor) * vae.config.scaling_factor)


@torch.no_grad()
def decode(vae: AutoencoderKL, tokens_BLD: torch.Tensor) -> torch.Tensor:
    """Normalised packed latents -> pixels (B, 3, H, W) in [-1, 1]."""
    latents = unpack(tokens_BLD) / vae.config.scaling_factor + vae.config.shift_factor
    with torch.autocast(latents.device.type, torch.bfloat16, enabled=latents.is_cuda):
        return vae.decode(latents.to(vae.dtype)).sample.float().clamp(-1, 1)


def encode_scenes(vae: AutoencoderKL, sprites: Sprites, scenes: Scenes, rows: np.ndarray) -> torch.Tensor:
    """Latents of scenes[rows] in bf16 on the CPU: (len(rows), L, D)."""
    chunks = np.array_split(rows, max(1, len(rows) // ENCODE_BATCH))
    encoded = [
        encode(vae, compose(sprites, scenes, chunk)).bfloat16().cpu() for chunk in track(chunks, "encoding scenes")
    ]
    return torch.cat(encoded)


def plain_scenes(num_pictures: int, colour: str = "white") -> Scenes:
    """Every picture once: centred, normal size, one background."""
    zeros = np.zeros(num_pictures, dtype=np.int64)
    return Scenes(
        np.arange(num_pictures), zeros + NORMAL, zeros + COLOUR_NAMES.index(colour),
        zeros.astype(bool), zeros - 1,
    )  # fmt: skip


def load_tokenizers(work: Path) -> tuple[Tokenizer, Tokenizer]:
    """(T5, CLIP) as raw tokenizers that pad and cut to MAX_TOKENS."""
    t5 = Tokenizer.from_file(str(work / "tokenizer_2" / "tokenizer.json"))
    clip = Tokenizer.from_file(str(work / "tokenizer" / "tokenizer.json"))
    for tokenizer, pad in ((t5, PAD_ID), (clip, CLIP_EOS_ID)):
        tokenizer.enable_truncation(MAX_TOKENS)
        tokenizer.enable_padding(pad_id=pad, length=MAX_TOKENS)
    return t5, clip


def tokenize(tokenizer: Tokenizer, captions: list[str]) -> torch.Tensor:
    """Ids as int16 (len(captions), MAX_TOKENS)."""
    encodings = tokenizer.encode_batch_fast(captions)
    return torch.tensor(np.array([e.ids for e in encodings], dtype=np.int16))


def write_tokens(work: Path, scenes: Scenes, pictures: list[Picture]) -> None:
    """Tokenise all captions, and the empty one that guidance needs, with both tokenizers."""
    captions = draw_captions(scenes, pictures, NUM_CAPTIONS)
    t5, clip = load_tokenizers(work)
    tables = {
        "t5": tokenize(t5, captions),
        "clip": tokenize(clip, captions),
        "t5_empty": tokenize(t5, [""]),
        "clip_empty": tokenize(clip, [""]),
    }
    save_file(tables, work / "tokens.safetensors")


def load_latents(work: Path, device: torch.device) -> torch.Tensor:
    """All ranks' latents on one device: bf16 (N, L, D)."""
    shards = sorted(work.glob("latents-*.safetensors"), key=lambda p: int(p.stem.split("-")[1]))
    if not shards:
        raise FileNotFoundError(f"no latents in {work}: run the latents stage first")
    return torch.cat([load_file(shard, device=str(device))["latents"] for shard in shards])


def write_latents(work: Path, num_versions: int, device: torch.device) -> None:
    """Encode this rank's share of the scenes; rank 0 also writes references and tokens."""
    pictures = load_index(work / "pictures.zip")
    vae = AutoencoderKL.from_pretrained(work / "vae").to(device).eval()
    sprites = Sprites(load_pixels(work / "pictures.zip"), device, vae.config.sample_size)
    scenes = draw_scenes(pictures, num_versions)
    share = np.array_split(np.arange(len(scenes)), ranks.num_ranks())[ranks.rank()]
    encoded = encode_scenes(vae, sprites, scenes, share)
    save_file({"latents": encoded}, work / f"latents-{ranks.rank()}.safetensors")
    if ranks.rank() == 0:
        plain = plain_scenes(len(pictures))
        references = encode_scenes(vae, sprites, plain, np.arange(len(plain)))
        save_file({"references": references}, work / "references.safetensors")
        write_tokens(work, scenes, pictures)
        print(f"{len(scenes)} scenes, {NUM_CAPTIONS} captions each", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_work_argument(parser)
    parser.add_argument(
        "--versions", type=int, default=96, help="scenes a picture (%(default)s)"
    )  # fmt: skip
    options = parser.parse_args()
    device = ranks.join()
    write_latents(options.work, options.versions, device)
    ranks.barrier()
    ranks.leave()


if __name__ == "__main__":
    main()
