"""Stage 10: paint 48 varied prompts, for the README and for blind judging.

Writes ``evaluation/grid.webp`` and ``evaluation/grid.json`` (prompts, in reading order). With
``--blind FOLDER`` it also writes the pictures in random order on numbered pages without prompts,
and ``key.json``: write down what each picture shows before you open the key.

Invariant: prompt i is painted with seed i.
"""

from __future__ import annotations

import argparse
import json
import random
from pathlib import Path

import torch
from PIL import Image, ImageDraw

from models.emoji.training.painting import SCHEMES, load_pipeline, paint
from models.emoji.training.workspace import add_model_argument

COLUMNS = 8
PAGE = 12
"""Pictures on one blind page."""
PROMPTS = (
    "a red apple, 3d style, blue background",
    "a cat, 3d style, yellow background",
    "a rocket, 3d style, navy background",
    "a unicorn, 3d style, pink background",
    "a pizza, flat style, light green background",
    "an octopus, 3d style, teal background",
    "a guitar, flat style, beige background",
    "a snowman, 3d style, light blue background",
    "a hamburger, 3d style, orange background",
    "a soccer ball, flat style, green background",
    "a penguin, 3d style, white background",
    "a key, flat style, purple background",
    "a sushi, 3d style, gray background",
    "a trophy, flat style, navy background",
    "a banana, 3d style, light blue background",
    "a jack o lantern, 3d style, black background",
    "a sunflower, flat style, light blue background",
    "an airplane, 3d style, white background",
    "a crown, 3d style, purple background",
    "a hot beverage, flat style, brown background",
    "a small ghost on the left, 3d style, black background",
    "a large strawberry, flat style, pink background",
    "a small turtle in the bottom right corner, 3d style, green background",
    "a butterfly at the top, flat style, yellow background",
    "a fish on the right, mirrored, 3d style, navy background",
    "a large robot, 3d style, teal background",
    "a bicycle, flat style, white background",
    "a dragon, flat style, beige background",
    "an astronaut, 3d style, black background",
    "a mermaid, flat style, light blue background",
    "a dog, flat style, light green background",
    "an owl, 3d style, brown background",
    "a cactus, 3d style, beige background",
    "a house with garden, flat style, light blue background",
    "a car, 3d style, gray background",
    "a christmas tree, flat style, red background",
    "a face with tears of joy, 3d style, white background",
    "a smiling face with sunglasses, 3d style, blue background",
    "a thumbs up, 3d style, yellow background",
    "a red heart, flat style, white background",
    "a crab, 3d style, light blue background",
    "a mushroom, 3d style, white background",
    "a violin, 3d style, green background",
    "a treasure chest, flat style, teal background",
    "a cupcake, flat style, pink background",
    "a cat and a dog, 3d style, white background",
    "a pizza and a beer, flat style, yellow background",
    "a rocket and a full moon, 3d style, navy background",
)


def sheet(images: list[Image.Image], columns: int, cell_px: int, numbers: range | None = None) -> Image.Image:
    """Pictures in a grid, each `cell_px` square, optionally numbered."""
    num_rows = -(-len(images) // columns)
    page = Image.new("RGB", (columns * cell_px, num_rows * cell_px), "white")
    pen = ImageDraw.Draw(page)
    for i, image in enumerate(images):
        place = (i % columns * cell_px, i // columns * cell_px)
        size = (cell_px - 4, cell_px - 4) if numbers else (cell_px, cell_px)
        page.paste(image.resize(size, Image.Resampling.LANCZOS), place)
        if numbers:
            pen.rectangle((*place, place[0] + 26, place[1] + 14), fill="white")
            pen.text((place[0] + 3, place[1] + 1), str(numbers[i]), fill="black")
    return page


def write_blind(images: list[Image.Image], prompts: list[str], folder: Path, seed: int) -> None:
    """Numbered pages in random order, and the key."""
    folder.mkdir(parents=True, exist_ok=True)
    order = list(range(len(images)))
    random.Random(seed).shuffle(order)
    for first in range(0, len(order), PAGE):
        rows = order[first : first + PAGE]
        numbers = range(first + 1, first + 1 + len(rows))
        sheet([images[r] for r in rows], 4, 256, numbers).save(folder / f"page-{first // PAGE}.png")
    key = {str(i + 1): prompts[row] for i, row in enumerate(order)}
    (folder / "key.json").write_text(json.dumps(key, indent=1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_model_argument(parser)
    parser.add_argument("--scheme", choices=SCHEMES, default="bfloat16")
    parser.add_argument("--threads", type=int, default=2, help="CPU threads (%(default)s)")
    parser.add_argument("--blind", type=Path, help="folder for the blind pages")
    parser.add_argument("--blind-seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    prompts = list(PROMPTS)
    images = paint(load_pipeline(options.model, options.scheme), prompts, list(range(len(prompts))))
    folder = options.model / "evaluation"
    folder.mkdir(exist_ok=True)
    sheet(images, COLUMNS, 128).save(folder / "grid.webp", quality=92, method=6)
    rows = [{"seed": i, "prompt": text} for i, text in enumerate(prompts)]
    (folder / "grid.json").write_text(json.dumps(rows, indent=1) + "\n")
    if options.blind:
        write_blind(images, prompts, options.blind, options.blind_seed)
    print(f"{len(prompts)} pictures in {folder / 'grid.webp'}")


if __name__ == "__main__":
    main()
