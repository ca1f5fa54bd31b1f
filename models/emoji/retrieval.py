"""What does this picture show? The nearest training pictures of the emoji model.

Needs numpy and Pillow only: no model, no training code. The reference set is one WebP atlas (a grid
of all training pictures, 32 px each, with transparency) and one JSON of names.

A picture is compared with every training picture drawn plain and centred on the picture's own
background, which is read from its border. So it works for any flat background, and for prompts
that ask for the normal size and place. Distances are root mean square
differences of 32 x 32 RGB in [0, 1]. A small distance alone proves little (plain noise on gray is
0.08 from a thin drawing): ask whether the nearest is the one you expect.

Invariant: `Reference.nearest` is deterministic and never loads a network.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

FOLDER = Path(__file__).resolve().parent / "reference"
CELL_PX = 32
OBJECT_SHARE = 104 / 128
"""Share of the canvas that a normal-sized object takes; source: training/compose.py."""


@dataclass(frozen=True)
class Match:
    """One training picture and how far the painted picture is from it."""

    name: str
    """The first name of the subject."""
    style: str
    distance: float
    names: tuple[str, ...]
    """All names of the subject, the first included."""


@dataclass(frozen=True)
class Reference:
    """All training pictures, small."""

    rgba: np.ndarray
    """Premultiplied float32 (N, 32, 32, 4) in [0, 1], drawn as on the canvas."""
    names: tuple[tuple[str, ...], ...]
    styles: tuple[str, ...]
    codes: tuple[str, ...]
    colours: dict[str, tuple[int, int, int]]
    """Background words and their RGB."""

    def nearest(self, image: Image.Image, k: int = 5) -> list[Match]:
        """The `k` nearest training pictures, nearest first, both styles."""
        distances = self.distances(image)
        rows = np.argsort(distances, kind="stable")[:k]
        return [Match(self.names[r][0], self.styles[r], float(distances[r]), self.names[r]) for r in rows]

    def distances(self, image: Image.Image) -> np.ndarray:
        """Distance to every training picture: float32 (N,)."""
        picture = shrink(image)
        background = background_rgb(image)
        alpha = self.rgba[..., 3:]
        drawn = self.rgba[..., :3] + (1 - alpha) * (background / 255).astype(np.float32)
        return np.sqrt(np.square(drawn - picture).mean(axis=(1, 2, 3)))

    def background(self, image: Image.Image) -> str:
        """The background word whose colour is nearest to the picture's border."""
        rgb = background_rgb(image)
        return min(self.colours, key=lambda c: float(np.square(rgb - self.colours[c]).sum()))

    def all_names(self) -> list[str]:
        """Every trained name once, sorted."""
        return sorted({name for names in self.names for name in names})

    def styles_of(self, name: str) -> list[str]:
        """The styles that were trained for a name ('3d', 'flat' or both)."""
        return [s for n, s in zip(self.names, self.styles, strict=True) if name in n]


def shrink(image: Image.Image) -> np.ndarray:
    """Any picture as float32 (32, 32, 3) in [0, 1]."""
    small = image.convert("RGB").resize((CELL_PX, CELL_PX), Image.Resampling.BOX)
    return np.asarray(small, dtype=np.float32) / 255


def background_rgb(image: Image.Image) -> np.ndarray:
    """Median colour of the outermost ring of pixels: float (3,) in 0..255."""
    pixels = np.asarray(image.convert("RGB"), dtype=np.float32)
    ring = [pixels[:2].reshape(-1, 3), pixels[-2:].reshape(-1, 3)]
    ring += [pixels[:, :2].reshape(-1, 3), pixels[:, -2:].reshape(-1, 3)]
    return np.median(np.concatenate(ring), axis=0)


def load_reference(path: Path | str = FOLDER) -> Reference:
    """Read the reference set of a folder that holds ``atlas.webp`` and ``names.json``.

    Raises:
        FileNotFoundError: the folder has no reference set.
    """
    folder = Path(path)
    facts = json.loads((folder / "names.json").read_text())
    atlas = np.asarray(Image.open(folder / "atlas.webp").convert("RGBA"), dtype=np.float32) / 255
    pictures = facts["pictures"]
    rows, columns = atlas.shape[0] // CELL_PX, atlas.shape[1] // CELL_PX
    cells = atlas.reshape(rows, CELL_PX, columns, CELL_PX, 4).swapaxes(1, 2)
    cells = cells.reshape(-1, CELL_PX, CELL_PX, 4)[: len(pictures)].copy()
    cells[..., :3] *= cells[..., 3:]
    return Reference(
        cells,
        tuple(tuple(p["names"]) for p in pictures),
        tuple(p["style"] for p in pictures),
        tuple(p["code"] for p in pictures),
        {word: tuple(rgb) for word, rgb in facts["colours"].items()},
    )
