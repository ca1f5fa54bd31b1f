"""Reads the pixels of a small PNG with the standard library alone, for terminals that show no pictures.

Knows 8-bit RGB and RGBA without interlacing, which is what Darkroom writes; anything else gives None.
Invariant: never more than MAX_PIXELS are decoded.
"""

from __future__ import annotations

import struct
import zlib

MAX_PIXELS = 1_100_000
SIGNATURE = b"\x89PNG\r\n\x1a\n"
CHANNELS_BY_COLOUR_TYPE = {2: 3, 6: 4}
Pixel = tuple[int, int, int]


def read_pixels(data: bytes) -> list[list[Pixel]] | None:
    """Returns rows of (red, green, blue), or None for what it can't read."""
    try:
        return _read(data)
    except (struct.error, zlib.error, LookupError):
        return None


def _read(data: bytes) -> list[list[Pixel]] | None:
    if not data.startswith(SIGNATURE):
        return None
    chunks = _split(data)
    width, height, depth, colour, _, _, interlace = struct.unpack(">IIBBBBB", chunks[b"IHDR"])
    channels = CHANNELS_BY_COLOUR_TYPE.get(colour)
    if depth != 8 or channels is None or interlace or width * height > MAX_PIXELS:
        return None
    stride = width * channels
    num_bytes = height * (stride + 1)
    raw = zlib.decompressobj().decompress(chunks[b"IDAT"], num_bytes)
    if len(raw) != num_bytes:
        return None
    rows: list[list[Pixel]] = []
    above = bytearray(stride)
    for start in range(0, num_bytes, stride + 1):
        line = _unfilter(raw[start], bytearray(raw[start + 1 : start + 1 + stride]), above, channels)
        rows.append([(line[i], line[i + 1], line[i + 2]) for i in range(0, stride, channels)])
        above = line
    return rows


def _split(data: bytes) -> dict[bytes, bytes]:
    chunks: dict[bytes, bytes] = {}
    offset = len(SIGNATURE)
    while offset < len(data):
        length, kind = struct.unpack(">I4s", data[offset : offset + 8])
        chunks[kind] = chunks.get(kind, b"") + data[offset + 8 : offset + 8 + length]
        offset += 12 + length
    return chunks


def _unfilter(kind: int, line: bytearray, above: bytearray, step: int) -> bytearray:
    """Undoes a row's filter (PNG specification, section 9.2)."""
    for i in range(len(line)):
        left = line[i - step] if i >= step else 0
        up = above[i]
        if kind == 1:
            line[i] = (line[i] + left) & 255
        elif kind == 2:
            line[i] = (line[i] + up) & 255
        elif kind == 3:
            line[i] = (line[i] + (left + up) // 2) & 255
        elif kind == 4:
            line[i] = (line[i] + _paeth(left, up, above[i - step] if i >= step else 0)) & 255
    return line


def _paeth(left: int, up: int, corner: int) -> int:
    estimate = left + up - corner
    distances = (abs(estimate - left), abs(estimate - up), abs(estimate - corner))
    return (left, up, corner)[distances.index(min(distances))]
