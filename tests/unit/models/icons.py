"""A tiny picture set drawn in code, for tests of the training stages."""

from __future__ import annotations

from pathlib import Path

from PIL import Image, ImageDraw

from models.emoji.training.pictures import Picture, crop_square, encode_webp, save_pictures

SHAPES = {"red square": "red", "blue disc": "blue", "green bar": "green"}


def drawing(name: str) -> Image.Image:
    """A shape with transparency around it, 60 px."""
    image = Image.new("RGBA", (60, 60), (0, 0, 0, 0))
    pen = ImageDraw.Draw(image)
    if name.endswith("disc"):
        pen.ellipse((10, 10, 50, 50), fill=SHAPES[name])
    elif name.endswith("bar"):
        pen.rectangle((5, 22, 55, 38), fill=SHAPES[name])
    else:
        pen.rectangle((12, 12, 48, 48), fill=SHAPES[name])
    return image


def write_icons(work: Path) -> list[Picture]:
    """Write ``pictures.zip`` with three subjects in two styles each."""
    pictures, payloads = [], []
    for code, name in enumerate(SHAPES):
        for style in ("3d", "flat"):
            pictures.append(Picture(f"{style}/{code}.webp", str(code), style, (name,), True))
            payloads.append(encode_webp(crop_square(drawing(name))))
    save_pictures(work / "pictures.zip", pictures, payloads)
    return pictures
