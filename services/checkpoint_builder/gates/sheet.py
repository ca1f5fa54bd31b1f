"""The contact sheet: every pair side by side with its figures, for a person to look at.

Knows nothing of how figures come about. Invariant: the same pairs and figures give the same picture.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

from darkroom.v1 import checkpoint_pb2
from services.checkpoint_builder.gates.pictures import Pair

# Longest side of a picture on the sheet, and the rest of its geometry, in pixels.
SIDE, GAP, MARGIN, HEAD, CAPTION = 256, 6, 32, 108, 74
MOST_COLUMNS = 3
INK, FAINT, PAPER, CARD = (32, 33, 36), (110, 114, 120), (246, 246, 244), (255, 255, 255)
GOOD, BAD, EDGE = (22, 120, 70), (190, 40, 40), (222, 222, 218)


@dataclass(frozen=True)
class Heading:
    """What stands on top."""

    title: str
    # "fp8 · transformer of emoji"
    subtitle: str
    has_passed: bool
    # Words of the verdict: "SSIM 0.94 mean, 0.88 worst".
    verdict: str


def draw_sheet(heading: Heading, pairs: Sequence[Pair], figures: Sequence[checkpoint_pb2.GatePair], path: Path) -> None:
    """Writes the sheet as PNG.

    Args:
        heading: the title and the verdict.
        pairs: the pictures; one that was not made is left blank.
        figures: of each pair, in the same order; may be fewer.
        path: of the file.
    """
    thumbs = [(_thumb(pair.dense), _thumb(pair.quantised)) for pair in pairs]
    height = max((picture.height for thumb in thumbs for picture in thumb if picture is not None), default=SIDE)
    card_width, card_height = 2 * SIDE + GAP + 24, height + CAPTION + 24
    columns = min(MOST_COLUMNS, max(1, len(pairs)), 2 if len(pairs) <= 4 else MOST_COLUMNS)
    rows = -(-len(pairs) // columns)
    width = 2 * MARGIN + columns * card_width + (columns - 1) * 16
    sheet = Image.new("RGB", (width, HEAD + rows * (card_height + 16) + MARGIN), PAPER)
    _draw_heading(ImageDraw.Draw(sheet), heading, width)
    for place, (pair, thumb) in enumerate(zip(pairs, thumbs, strict=True)):
        left = MARGIN + (place % columns) * (card_width + 16)
        top = HEAD + (place // columns) * (card_height + 16)
        own = figures[place] if place < len(figures) else None
        _draw_card(sheet, (left, top, card_width, card_height), pair, thumb, height, own)
    sheet.save(path, format="PNG", optimize=True)


def _draw_heading(draw: ImageDraw.ImageDraw, heading: Heading, width: int) -> None:
    draw.text((MARGIN, 24), heading.title, INK, _font(30))
    draw.text((MARGIN, 66), heading.subtitle, FAINT, _font(15))
    word = "passed" if heading.has_passed else "failed"
    colour, font = GOOD if heading.has_passed else BAD, _font(17)
    room = draw.textlength(word, font) + 28
    box = (width - MARGIN - room, 26, width - MARGIN, 58)
    draw.rounded_rectangle(box, 16, colour)
    draw.text(((box[0] + box[2]) / 2, 42), word, CARD, font, anchor="mm")
    text = _fitted(draw, heading.verdict, _font(15), width // 2)
    draw.text((width - MARGIN, 75), text, FAINT, _font(15), anchor="rm")


def _draw_card(
    sheet: Image.Image,
    box: tuple[int, int, int, int],
    pair: Pair,
    thumb: tuple[Image.Image | None, Image.Image | None],
    height: int,
    own: checkpoint_pb2.GatePair | None,
) -> None:
    left, top, width, tall = box
    draw = ImageDraw.Draw(sheet)
    draw.rounded_rectangle((left, top, left + width, top + tall), 10, CARD, EDGE)
    for place, picture in enumerate(thumb):
        corner = (left + 12 + place * (SIDE + GAP), top + 12)
        if picture is None:
            draw.rectangle((*corner, corner[0] + SIDE, corner[1] + height), PAPER)
            draw.text((corner[0] + SIDE / 2, corner[1] + height / 2), "not made", FAINT, _font(14), anchor="mm")
        else:
            sheet.paste(picture, (corner[0] + (SIDE - picture.width) // 2, corner[1] + (height - picture.height) // 2))
    base = top + 12 + height
    for place, word in enumerate(("dense", "checkpoint")):
        draw.text((left + 12 + place * (SIDE + GAP), base + 8), word, FAINT, _font(12))
    draw.text((left + 12, base + 26), _fitted(draw, pair.prompt, _font(15), width - 24), INK, _font(15))
    draw.text((left + 12, base + 50), caption(pair.seed, own), FAINT, _font(13))


def caption(seed: int, own: checkpoint_pb2.GatePair | None) -> str:
    """Returns the figures of a pair in words."""
    if own is None:
        return f"seed {seed}"
    parts = [f"SSIM {own.ssim:.3f}", f"PSNR {own.psnr_db:.1f} dB"]
    if own.HasField("lpips"):
        parts.append(f"LPIPS {own.lpips:.3f}")
    if own.HasField("clip_drop"):
        parts.append(f"CLIP {-own.clip_drop:+.3f}")
    parts.append(f"luma {own.dense_luma:.2f} and {own.luma:.2f}")
    return "   ".join([*parts, f"seed {seed}"])


def _thumb(data: bytes) -> Image.Image | None:
    if not data:
        return None
    with Image.open(io.BytesIO(data)) as opened:
        picture = opened.convert("RGB")
    scale = SIDE / max(picture.size)
    size = (max(1, round(picture.width * scale)), max(1, round(picture.height * scale)))
    return picture.resize(size, Image.Resampling.LANCZOS)


def _font(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    """Pillow's own: the same on every machine."""
    return ImageFont.load_default(size)


def _fitted(draw: ImageDraw.ImageDraw, text: str, font: ImageFont.FreeTypeFont | ImageFont.ImageFont, room: int) -> str:
    if draw.textlength(text, font) <= room:
        return text
    while text and draw.textlength(f"{text}…", font) > room:
        text = text[:-1]
    return f"{text.rstrip()}…"
