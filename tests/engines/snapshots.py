"""Picture files as people send them: made by Pillow, in every format, orientation and mode.

Knows nothing of pytest. Invariant: the same arguments give the same bytes.
"""

from __future__ import annotations

import io
import struct
import zlib
from typing import Any

import numpy as np
from PIL import Image

from darkroom.v1 import generation_pb2

ORIENTATION_TAG = 0x0112


def scene(width: int = 96, height: int = 64, seed: int = 0) -> Image.Image:
    """A picture without symmetry: smooth colours, a corner that is marked."""
    rows, columns = np.mgrid[0:height, 0:width]
    pixels = np.stack([columns * 255 // width, rows * 255 // height, (columns + rows + seed * 97) % 256], -1)
    pixels[: height // 4, : width // 4] = (255, 40 * seed % 256, 0)
    return Image.fromarray(pixels.astype(np.uint8))


def file_of_image(picture: Image.Image, kind: str = "PNG", orientation: int = 1, **options: Any) -> bytes:
    """The picture as a file, with an EXIF orientation unless it is upright."""
    file = io.BytesIO()
    if orientation != 1:
        exif = Image.Exif()
        exif[ORIENTATION_TAG] = orientation
        options["exif"] = exif
    picture.save(file, kind, **options)
    return file.getvalue()


def reference(data: bytes) -> generation_pb2.InputImage:
    """The file as a request brings it."""
    return generation_pb2.InputImage(data=data)


def png_that_claims(width: int, height: int) -> bytes:
    """A small PNG whose header names another size: nothing follows that could fill it."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    pixels = zlib.compress(b"\0" * 1000)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")
