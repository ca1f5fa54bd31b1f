"""Pictures that a request brings, decoded as people see them: upright, on white, 8-bit RGB.

Knows nothing of pipelines. Invariants: nothing is decoded whose size is not the one that its header was judged by;
orientation is the header's alone, whatever else a file says.
"""

from __future__ import annotations

import io
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from PIL import Image, UnidentifiedImageError

from darkroom.images import Header, UnreadableImageError, read_header
from darkroom.rpc.errors import InvalidRequestError
from darkroom.v1 import generation_pb2

# Pillow's names of the formats that a header is read of; no other decoder is tried.
FORMATS = ("PNG", "JPEG", "WEBP")
WHITE = (255, 255, 255, 255)
# What turns a picture upright, by EXIF's orientation.
UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


@dataclass(frozen=True)
class Decoded:
    """A picture that a request brought."""

    # Upright, in RGB.
    picture: Image.Image
    # What was done to it beyond reading it.
    notes: tuple[str, ...] = ()


def decode_images(images: Iterable[generation_pb2.InputImage]) -> list[Decoded]:
    """Decodes pictures whose headers have passed `darkroom.images`.

    Raises:
        InvalidRequestError: names those whose pixels can't be read.
    """
    decoded, violations = [], {}
    for place, image in enumerate(images):
        try:
            decoded.append(_decode(image.data, read_header(image.data)))
        except UnreadableImageError as fault:
            violations[f"request.images[{place}].data"] = f"{fault}; send a whole PNG, JPEG or WebP file"
    if violations:
        raise InvalidRequestError(violations)
    return decoded


def _decode(data: bytes, header: Header) -> Decoded:
    try:
        with Image.open(io.BytesIO(data), formats=FORMATS) as file:
            if file.size != (header.width, header.height):
                raise UnreadableImageError(f"says {header.width}x{header.height} and holds {file.width}x{file.height}")
            file.load()
            is_clear = file.has_transparency_data
            picture = _on_white(file) if is_clear else _in_rgb(file)
    except (OSError, SyntaxError, ValueError, UnidentifiedImageError, Image.DecompressionBombError) as fault:
        # What Pillow's decoders raise for bytes that they can't read.
        raise UnreadableImageError(f"can't be decoded ({fault})") from fault
    notes = ["transparent parts laid over white"] if is_clear else []
    if (turn := UPRIGHT.get(header.orientation)) is not None:
        picture = picture.transpose(turn)
        notes.append(f"turned upright from EXIF orientation {header.orientation}")
    return Decoded(picture, tuple(notes))


def _on_white(picture: Image.Image) -> Image.Image:
    layer = picture.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", layer.size, WHITE), layer).convert("RGB")


def _in_rgb(picture: Image.Image) -> Image.Image:
    if not picture.mode.startswith("I"):
        return picture.convert("RGB")
    # Sixteen bits of grey, which Pillow's own conversion cuts off at 255.
    return Image.fromarray((np.asarray(picture) >> 8).astype(np.uint8)).convert("RGB")
