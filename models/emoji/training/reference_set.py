"""Stage 8: make the small reference set that `models.emoji.retrieval` reads.

Writes ``reference/atlas.webp`` (every training picture plain and centred, 32 px, with transparency)
and ``reference/names.json``. Does not know the model.
Invariant: cell i of the atlas, row by row, is picture i of names.json.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path

import numpy as np
from PIL import Image

from models.emoji.retrieval import CELL_PX
from models.emoji.training.compose import CANVAS_PX, COLOURS, LAYOUTS, NORMAL
from models.emoji.training.pictures import Picture, load_index, load_pixels
from models.emoji.training.progress import track
from models.emoji.training.workspace import add_model_argument, add_work_argument

WEBP_QUALITY = 90


def cell(pixels_HWC: np.ndarray) -> np.ndarray:
    """One straight RGBA picture as it lies on the canvas, CELL_PX square."""
    layout = LAYOUTS[NORMAL]
    canvas = Image.new("RGBa", (CANVAS_PX, CANVAS_PX), (0, 0, 0, 0))
    size = (layout.object_px, layout.object_px)
    drawing = Image.fromarray(pixels_HWC, "RGBA").convert("RGBa")
    canvas.paste(drawing.resize(size, Image.Resampling.BICUBIC), (layout.left, layout.top))
    small = canvas.resize((CELL_PX, CELL_PX), Image.Resampling.BOX)
    return np.asarray(small.convert("RGBA"))


def atlas(pixels_NHWC: np.ndarray) -> Image.Image:
    """All cells in a square grid."""
    columns = math.ceil(math.sqrt(len(pixels_NHWC)))
    rows = math.ceil(len(pixels_NHWC) / columns)
    sheet = np.zeros((rows * CELL_PX, columns * CELL_PX, 4), dtype=np.uint8)
    for i, pixels in track(list(enumerate(pixels_NHWC)), "shrinking pictures"):
        top, left = i // columns * CELL_PX, i % columns * CELL_PX
        sheet[top : top + CELL_PX, left : left + CELL_PX] = cell(pixels)
    return Image.fromarray(sheet, "RGBA")


def names_json(pictures: list[Picture]) -> str:
    """The JSON beside the atlas, one picture a line."""
    lines = [json.dumps({"code": p.code, "style": p.style, "names": p.names}) for p in pictures]
    joined = ",\n".join(lines)
    return f'{{"colours": {json.dumps(COLOURS)},\n"pictures": [\n{joined}\n]}}\n'


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_work_argument(parser)
    add_model_argument(parser)
    options = parser.parse_args()
    folder: Path = options.model / "reference"
    folder.mkdir(parents=True, exist_ok=True)
    pictures = load_index(options.work / "pictures.zip")
    image = atlas(load_pixels(options.work / "pictures.zip", num_threads=2))
    image.save(folder / "atlas.webp", quality=WEBP_QUALITY, method=6)
    (folder / "names.json").write_text(names_json(pictures))
    total = sum(f.stat().st_size for f in folder.iterdir())
    print(f"{len(pictures)} pictures, {total / 2**20:.2f} MiB in {folder}")


if __name__ == "__main__":
    main()
