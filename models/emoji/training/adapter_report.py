"""Measure the pixel-art adapter: how much pixel art before and after, and is it still the subject?

`pixel_art.pixelness` is the share of all change that lies on the borders of 4 px blocks: about 0.25
for ordinary pictures, 1 for perfect pixel art. Painted through the stock pipeline, same seeds
with and without the adapter. Writes ``evaluation/adapter.json`` and ``evaluation/adapter.webp``
(above: without, below: with). The words of the prompt stay the same ("3d style"); what "pixel art
style" does is measured beside it.

Invariant: the adapter is read with ``load_lora_weights`` and removed with ``unload_lora_weights``;
the pictures after removal must equal those before.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from models.emoji.retrieval import Reference, load_reference
from models.emoji.training.captions import Wish, prompt
from models.emoji.training.evaluate import draw_wishes
from models.emoji.training.grid import sheet
from models.emoji.training.painting import load_pipeline, paint
from models.emoji.training.pixel_art import pixelness
from models.emoji.training.workspace import add_model_argument

ADAPTER = Path("adapters") / "pixel-art"
SHOWN = ("red apple", "cat", "rocket", "unicorn", "penguin", "pizza", "ghost", "hamburger")


def mean_pixelness(images: list[Image.Image]) -> float:
    """Mean over pictures."""
    pixels = torch.stack([torch.from_numpy(np.asarray(i, dtype=np.float32)) for i in images])
    return round(float(pixelness(pixels.permute(0, 3, 1, 2) / 127.5 - 1).mean()), 4)


def recall(images: list[Image.Image], wishes: list[Wish], reference: Reference) -> float:
    """Share of pictures whose subject is among the five nearest of the reference set."""
    hits = [
        any(wish.name in match.names for match in reference.nearest(image, 5))
        for image, wish in zip(images, wishes, strict=True)
    ]
    return round(sum(hits) / len(hits), 4)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_model_argument(parser)
    parser.add_argument("--num-prompts", type=int, default=64)
    parser.add_argument("--threads", type=int, default=2, help="CPU threads (%(default)s)")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    reference = load_reference(options.model / "reference")
    wishes = [Wish(name, "3d", "light blue") for name in SHOWN]
    wishes += draw_wishes(reference, options.num_prompts - len(wishes), seed=2)
    spoken = [Wish(**{**vars(wish), "style": "pixel art"}) for wish in wishes]
    plain, pixel_words = [prompt(w) for w in wishes], [prompt(w) for w in spoken]
    seeds = list(range(len(wishes)))
    pipeline = load_pipeline(options.model)
    without = paint(pipeline, plain, seeds)
    pipeline.load_lora_weights(options.model / ADAPTER)
    with_adapter = paint(pipeline, plain, seeds)
    with_words = paint(pipeline, pixel_words, seeds)
    pipeline.unload_lora_weights()
    again = paint(pipeline, plain[:8], seeds[:8])
    report = {
        "num_prompts": len(wishes),
        "pixelness_without": mean_pixelness(without),
        "pixelness_with": mean_pixelness(with_adapter),
        "pixelness_with_its_words": mean_pixelness(with_words),
        "among_five_without": recall(without, wishes, reference),
        "among_five_with": recall(with_adapter, wishes, reference),
        "among_five_with_its_words": recall(with_words, wishes, reference),
        "is_removable": all(a.tobytes() == b.tobytes() for a, b in zip(again, without[:8], strict=True)),
    }
    folder = options.model / "evaluation"
    folder.mkdir(exist_ok=True)
    sheet(without[:8] + with_adapter[:8], 8, 128).save(folder / "adapter.webp", quality=92)
    (folder / "adapter.json").write_text(json.dumps(report, indent=1) + "\n")
    print(report)


if __name__ == "__main__":
    main()
