"""Paints the fake's pictures: a PNG of diagonal stripes, written with the standard library alone.

Invariant: same prompt, seed and size, same bytes.
"""

from __future__ import annotations

import hashlib
import struct
import zlib

from darkroom.v1 import generation_pb2

STRIPE_PIXELS = 8


def paint(request: generation_pb2.GenerationRequest) -> bytes:
    """Returns a PNG of the request's size, in two colours made of its prompt and seed."""
    digest = hashlib.sha256(f"{request.prompt}\0{request.seed}".encode()).digest()
    colours = (digest[:3], digest[3:6])
    period = b"".join(colour * STRIPE_PIXELS for colour in colours)
    row = period * (request.width // (2 * STRIPE_PIXELS) + 2)
    rows = bytearray()
    for y in range(request.height):
        start = 3 * (y % (2 * STRIPE_PIXELS))
        rows += b"\0" + row[start : start + 3 * request.width]
    header = struct.pack(">IIBBBBB", request.width, request.height, 8, 2, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(bytes(rows))), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, data) for kind, data in chunks)


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
