"""Compose pictures on flat backgrounds, on any device, exactly.

Does not know captions or models. Legend: B batch, N pictures, C channels, H height, W width,
S sprite side. Pixels are float in [-1, 1] unless a name says otherwise.

Invariant: positions lie on a grid of 16 px (one token of the denoiser), so that the same drawing at
two places differs by a shift of whole tokens: the easiest thing for a small model to learn.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch.nn import functional

CANVAS_PX = 128

COLOURS: dict[str, tuple[int, int, int]] = {
    "white": (255, 255, 255), "black": (0, 0, 0), "gray": (128, 128, 128),
    "red": (220, 40, 40), "orange": (255, 150, 40), "yellow": (255, 225, 70),
    "green": (50, 160, 70), "light green": (170, 230, 150), "blue": (50, 110, 230),
    "light blue": (165, 215, 250), "navy": (25, 35, 90), "purple": (130, 70, 190),
    "pink": (255, 165, 200), "brown": (125, 80, 50), "teal": (25, 150, 150),
    "beige": (240, 225, 195),
}  # fmt: skip
COLOUR_NAMES = tuple(COLOURS)


@dataclass(frozen=True)
class Layout:
    """Where one drawing goes on a 128 px canvas, and the words that say so."""

    object_px: int
    left: int
    top: int
    weight: float
    """Share of the training scenes."""
    size: str = ""
    """'' (normal), 'large' or 'small'."""
    place: str = ""
    """'' (centre), or one of `captions.PLACES`."""


def _centred(object_px: int) -> int:
    return (CANVAS_PX - object_px) // 2


def _layouts() -> tuple[Layout, ...]:
    """Centre 104, large 124, small 60 (9 places), medium 80 where a place but no size is said."""
    small, medium = _centred(60), _centred(80)
    sides = {"left": (-1, 0), "right": (1, 0), "top": (0, -1), "bottom": (0, 1)}
    corners = {
        f"{vertical} {horizontal}": (x, y)
        for vertical, y in (("top", -1), ("bottom", 1))
        for horizontal, x in (("left", -1), ("right", 1))
    }
    layouts = [
        Layout(104, _centred(104), _centred(104), 0.62),
        Layout(124, _centred(124), _centred(124), 0.09, "large"),
        Layout(60, small, small, 0.06, "small"),
    ]
    for place, (x, y) in sides.items():
        layouts.append(Layout(60, small + 32 * x, small + 32 * y, 0.015, "small", place))
        layouts.append(Layout(80, medium + 16 * x, medium + 16 * y, 0.0175, "", place))
    for place, (x, y) in corners.items():
        layouts.append(Layout(60, small + 32 * x, small + 32 * y, 0.01, "small", place))
    return tuple(layouts)


LAYOUTS = _layouts()
NORMAL = 0
"""Row of the plain centred layout in `LAYOUTS`."""
PAIR_WEIGHT = 0.10
"""Share of scenes with two drawings side by side (each 60 px)."""
PAIR_LEFT = next(i for i, x in enumerate(LAYOUTS) if (x.size, x.place) == ("small", "left"))
PAIR_RIGHT = next(i for i, x in enumerate(LAYOUTS) if (x.size, x.place) == ("small", "right"))


def colour_tensor(device: torch.device | str = "cpu") -> torch.Tensor:
    """The palette as float (16, 3) in [0, 1], rows in the order of `COLOUR_NAMES`."""
    return torch.tensor(list(COLOURS.values()), dtype=torch.float32, device=device) / 255


class Sprites:
    """Every picture at every size a layout needs, premultiplied, uint8, on one device."""

    def __init__(
        self, pixels_NHWC: np.ndarray, device: torch.device | str, canvas_px: int = CANVAS_PX,
        layouts: tuple[Layout, ...] = LAYOUTS,
    ) -> None:  # fmt: skip
        self.device = torch.device(device)
        self.canvas_px = canvas_px
        self.num_pictures = len(pixels_NHWC)
        self._by_side: dict[int, torch.Tensor] = {}
        for side in sorted({self.scaled(layout.object_px) for layout in layouts}):
            chunks = [
                resize_premultiplied(torch.from_numpy(chunk).to(device), side)
                for chunk in np.array_split(pixels_NHWC, max(1, len(pixels_NHWC) // 256))
            ]
            self._by_side[side] = torch.cat(chunks)

    def scaled(self, px: int) -> int:
        """A length of the 128 px canvas on this canvas."""
        return round(px * self.canvas_px / CANVAS_PX)

    def take(self, rows_B: torch.Tensor, side: int) -> torch.Tensor:
        """Premultiplied RGBA of some pictures: float (B, 4, S, S) in [0, 1]."""
        return self._by_side[side][rows_B].float() / 255


def resize_premultiplied(pixels_NHWC: torch.Tensor, side: int) -> torch.Tensor:
    """Straight uint8 RGBA (N, H, W, 4) -> premultiplied uint8 (N, 4, side, side), antialiased."""
    rgba = pixels_NHWC.permute(0, 3, 1, 2).float() / 255
    rgba = torch.cat([rgba[:, :3] * rgba[:, 3:], rgba[:, 3:]], dim=1)
    resized = functional.interpolate(rgba, (side, side), mode="bicubic", antialias=True).clamp(0, 1)
    colour = torch.minimum(resized[:, :3], resized[:, 3:])
    return (torch.cat([colour, resized[:, 3:]], dim=1) * 255).round().to(torch.uint8)


def paste(
    canvas_BCHW: torch.Tensor, sprites: Sprites, rows: np.ndarray, layouts: np.ndarray,
    mirrored: np.ndarray,
) -> None:  # fmt: skip
    """Draw picture rows[b] (numpy, length B) on canvas b, in place; negative rows draw nothing.

    Args:
        canvas_BCHW: float (B, 3, H, W) in [0, 1].
        layouts: row of `LAYOUTS` for each canvas.
        mirrored: whether to flip the drawing left to right.
    """
    for layout_row in np.unique(layouts):
        layout = LAYOUTS[layout_row]
        side = sprites.scaled(layout.object_px)
        top, left = sprites.scaled(layout.top), sprites.scaled(layout.left)
        for flip in (False, True):
            chosen = (layouts == layout_row) & (mirrored == flip) & (rows >= 0)
            picked = np.flatnonzero(chosen)
            if picked.size == 0:
                continue
            where = torch.from_numpy(picked).to(sprites.device)
            rgba = sprites.take(torch.from_numpy(rows[picked]).to(sprites.device), side)
            rgba = rgba.flip(-1) if flip else rgba
            window = canvas_BCHW[where, :, top : top + side, left : left + side]
            blended = window * (1 - rgba[:, 3:]) + rgba[:, :3]
            canvas_BCHW[where, :, top : top + side, left : left + side] = blended


def blank(colours_B3: torch.Tensor, canvas_px: int) -> torch.Tensor:
    """Flat canvases (B, 3, H, W) of the given colours (float in [0, 1])."""
    return colours_B3[:, :, None, None].expand(-1, -1, canvas_px, canvas_px).clone()


def compose(sprites: Sprites, scenes: Scenes, rows: np.ndarray) -> torch.Tensor:
    """The pictures of scenes[rows]: float (B, 3, H, W) in [-1, 1]."""
    chosen = scenes.take(rows)
    palette = colour_tensor(sprites.device)
    colours = palette[torch.from_numpy(chosen.colour).to(sprites.device)]
    canvas = blank(colours, sprites.canvas_px)
    paste(canvas, sprites, chosen.picture, chosen.layout, chosen.mirrored)
    right = np.full_like(chosen.layout, PAIR_RIGHT)
    paste(canvas, sprites, chosen.partner, right, np.zeros_like(chosen.mirrored))
    return canvas * 2 - 1


@dataclass(frozen=True)
class Scenes:
    """A table of scenes, one row each (numpy arrays of one length)."""

    picture: np.ndarray
    """int64 rows of the picture set."""
    layout: np.ndarray
    """int64 rows of `LAYOUTS`."""
    colour: np.ndarray
    """int64 rows of `COLOUR_NAMES`."""
    mirrored: np.ndarray
    """bool."""
    partner: np.ndarray
    """int64 row of the second picture, on the right, or -1."""

    def __len__(self) -> int:
        return len(self.picture)

    def take(self, rows: np.ndarray) -> Scenes:
        """Some rows of the table, as a table."""
        names = ("picture", "layout", "colour", "mirrored", "partner")
        return Scenes(*(getattr(self, name)[rows] for name in names))
