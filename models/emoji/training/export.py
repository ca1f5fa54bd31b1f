"""Stage 6: put the trained parts together as a stock diffusers pipeline folder.

Reads ``weights.safetensors``, ``vae/`` and both tokenizers from the work folder, writes
model_index.json and seven component folders, all weights in bf16. Does not train or judge.
Invariant: ``FluxPipeline.from_pretrained(folder)`` needs nothing else, no network and no own code.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from diffusers import AutoencoderKL, FlowMatchEulerDiscreteScheduler, FluxPipeline
from safetensors.torch import load_file
from transformers import CLIPTokenizer, T5TokenizerFast

from models.emoji.training.flow import TextToVelocity
from models.emoji.training.shapes import PRESETS, Shape
from models.emoji.training.workspace import add_model_argument, add_work_argument

DEFAULT_SHIFT = 2.0
"""Static time shift saved in the scheduler; source: the sweep in the model card."""


def load_networks(work: Path, shape: Shape) -> TextToVelocity:
    """The trained denoiser and text encoders as one module, in bf16 values and dtype."""
    networks = TextToVelocity.fresh(shape)
    weights = load_file(work / "weights.safetensors")
    missing, unexpected = networks.load_state_dict(weights, strict=False)
    # T5 ties its embedding: the second name of the same tensor is not stored.
    missing = [name for name in missing if "embed_tokens" not in name]
    if missing or unexpected:
        raise ValueError(f"weights do not fit: missing {missing}, unexpected {unexpected}")
    return networks.to(torch.bfloat16).eval()


def load_autoencoder(work: Path) -> AutoencoderKL:
    """The trained autoencoder without the path it was read from."""
    vae = AutoencoderKL.from_pretrained(work / "vae", dtype=torch.bfloat16)
    vae.register_to_config(_name_or_path="")
    return vae.eval()


def assemble(work: Path, shape: Shape, shift: float = DEFAULT_SHIFT) -> FluxPipeline:
    """The pipeline in memory."""
    networks = load_networks(work, shape)
    scheduler = FlowMatchEulerDiscreteScheduler(num_train_timesteps=1000, shift=shift, use_dynamic_shifting=False)
    return FluxPipeline(
        scheduler=scheduler,
        vae=load_autoencoder(work),
        text_encoder=networks.clip,
        tokenizer=CLIPTokenizer.from_pretrained(work / "tokenizer"),
        text_encoder_2=networks.t5,
        tokenizer_2=T5TokenizerFast.from_pretrained(work / "tokenizer_2"),
        transformer=networks.transformer,
    )


def save(pipeline: FluxPipeline, folder: Path) -> None:
    """Write the pipeline; text encoders say float32 so that a load without dtype is of one kind.

    transformers 5 loads in the dtype its config names, diffusers 0.42 in float32: a pipeline whose
    text encoders say bfloat16 fails at its first matrix product unless the caller passes a dtype.
    """
    pipeline.save_pretrained(folder)
    for name in ("text_encoder", "text_encoder_2"):
        path = folder / name / "config.json"
        config = json.loads(path.read_text())
        config["dtype"] = "float32"
        path.write_text(json.dumps(config, indent=2) + "\n")


def weight_bytes(folder: Path) -> dict[str, int]:
    """Bytes of safetensors by component."""
    return {f.parent.name: f.stat().st_size for f in sorted(folder.glob("*/*.safetensors"))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_work_argument(parser)
    add_model_argument(parser)
    parser.add_argument("--shape", choices=PRESETS, default="emoji", help="size preset")
    parser.add_argument("--shift", type=float, default=DEFAULT_SHIFT, help="(%(default)s)")
    options = parser.parse_args()
    save(assemble(options.work, PRESETS[options.shape], options.shift), options.model)
    sizes = weight_bytes(options.model)
    print(sizes, f"{sum(sizes.values()) / 2**20:.2f} MiB")


if __name__ == "__main__":
    main()
