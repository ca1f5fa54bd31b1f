"""The picture set: RGBA pictures with names and styles, kept in one zip file.

Does not know where pictures come from. ``pictures.zip`` holds ``index.json`` (a list of objects
with file, code, style, names, is_mirrorable) and one WebP a picture.
Invariant: every picture is square and its drawing touches the border on its longer side, so that
the size on the canvas is decided by `compose` alone.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
from PIL import Image

STORED_PX = 160
WEBP_QUALITY = 92
_OPAQUE = 8  # alpha below this (of 255) is not part of the drawing


@dataclass(frozen=True)
class Picture:
    """One picture of one subject in one style."""

    file: str
    code: str
    style: str
    names: tuple[str, ...]
    is_mirrorable: bool
    is_only_style: bool = False
    """Whether the subject has no other style, so that a caption may leave the style unsaid."""


def mark_only_styles(pictures: list[Picture]) -> list[Picture]:
    """Set `is_only_style` from the whole set."""
    count = Counter(picture.code for picture in pictures)
    return [replace(picture, is_only_style=count[picture.code] == 1) for picture in pictures]


def crop_square(image: Image.Image, side_px: int = STORED_PX) -> Image.Image:
    """Cut an RGBA picture to its drawing, pad to a square, resize to `side_px`.

    Raises:
        ValueError: the picture is fully transparent.
    """
    alpha = np.asarray(image.getchannel("A"))
    rows, columns = np.nonzero(alpha >= _OPAQUE)
    if rows.size == 0:
        raise ValueError("the picture is fully transparent")
    box = (columns.min(), rows.min(), columns.max() + 1, rows.max() + 1)
    drawing = image.crop(tuple(int(edge) for edge in box))
    side = max(drawing.size)
    square = Image.new("RGBA", (side, side), (0, 0, 0, 0))
    square.paste(drawing, ((side - drawing.width) // 2, (side - drawing.height) // 2))
    return square.convert("RGBa").resize((side_px, side_px), Image.LANCZOS).convert("RGBA")


def encode_webp(image: Image.Image) -> bytes:
    """Lossy WebP with alpha: about 5 kB a picture at 160 px."""
    buffer = io.BytesIO()
    image.save(buffer, "WEBP", quality=WEBP_QUALITY, method=4)
    return buffer.getvalue()


def save_pictures(path: Path, pictures: list[Picture], payloads: list[bytes]) -> None:
    """Write the picture set; `payloads` are the WebP files in the order of `pictures`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        index = json.dumps([asdict(picture) for picture in pictures], indent=0)
        archive.writestr("index.json", index, zipfile.ZIP_DEFLATED)
        for picture, payload in zip(pictures, payloads, strict=True):
            archive.writestr(picture.file, payload)


def load_index(path: Path) -> list[Picture]:
    """Read names and styles without decoding a picture."""
    with zipfile.ZipFile(path) as archive:
        rows = json.loads(archive.read("index.json"))
    return [Picture(**{**row, "names": tuple(row["names"])}) for row in rows]


def load_pixels(path: Path, num_threads: int = 8) -> np.ndarray:
    """Decode every picture: uint8 (N, STORED_PX, STORED_PX, 4), straight alpha."""
    with zipfile.ZipFile(path) as archive:
        rows = json.loads(archive.read("index.json"))
        payloads = [archive.read(row["file"]) for row in rows]
    with ThreadPoolExecutor(num_threads) as pool:
        return np.stack(list(pool.map(_decode, payloads)))


def _decode(payload: bytes) -> np.ndarray:
    image = Image.open(io.BytesIO(payload)).convert("RGBA")
    if image.size != (STORED_PX, STORED_PX):
        image = image.resize((STORED_PX, STORED_PX), Image.LANCZOS)
    return np.asarray(image)
