"""What the structure of a PNG, JPEG or WebP file tells: size, orientation, whether it moves, whether it is whole.

Knows nothing of limits, and decodes no pixel. Invariant: any bytes give a header or UnreadableImageError, in time
proportional to their number. A decoder compares what it finds with the header before it decodes.
Sources: PNG 3rd edition (W3C), ITU-T T.81 annex B, RFC 9649 (WebP), CIPA DC-008 (EXIF orientation, tag 0x0112).
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

PNG, JPEG, WEBP = "image/png", "image/jpeg", "image/webp"
PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
EXIF_PREFIX = b"Exif\0\0"
ORIENTATION_TAG = 0x0112
# Orientations of EXIF that swap width and height.
TURNED = (5, 6, 7, 8)
# Markers of JPEG that begin a frame: all of C0 to CF but tables (C4, CC) and the reserved C8.
FRAME_MARKERS = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
# Markers without a length.
BARE_MARKERS = frozenset({0x01, *range(0xD0, 0xD9)})
START_OF_SCAN, END_OF_IMAGE, EXIF_SEGMENT = 0xDA, 0xD9, 0xE1
# Flags of a VP8X chunk.
WEBP_ANIMATED = 0x02


class UnreadableImageError(Exception):
    """The bytes are no picture of a known kind, or not all of one; says which."""


@dataclass(frozen=True)
class Header:
    """What a file's structure tells."""

    content_type: str
    # Pixels as they are stored.
    width: int
    height: int
    # EXIF's: 1 is upright.
    orientation: int = 1
    is_animated: bool = False

    @property
    def shown_size(self) -> tuple[int, int]:
        """Width and height in pixels once the orientation is applied."""
        size = (self.width, self.height)
        return size[::-1] if self.orientation in TURNED else size


def read_header(data: bytes) -> Header:
    """Reads a file's structure.

    Raises:
        UnreadableImageError: it is none of PNG, JPEG and WebP, or not a whole one.
    """
    try:
        if data.startswith(PNG_SIGNATURE):
            return _read_png(data)
        if data.startswith(b"\xff\xd8\xff"):
            return _read_jpeg(data)
        if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
            return _read_webp(data)
    except struct.error as fault:
        raise UnreadableImageError("is cut off") from fault
    raise UnreadableImageError(f"begins with {data[:8].hex(' ') or 'nothing'}, which is no PNG, JPEG or WebP")


def _read_png(data: bytes) -> Header:
    size: tuple[int, int] | None = None
    orientation, is_animated, is_over = 1, False, False
    for kind, body in _png_chunks(data):
        if size is None and kind != b"IHDR":
            raise UnreadableImageError("is a PNG without a header")
        if kind == b"IHDR":
            size = struct.unpack_from(">II", body)
        elif kind == b"eXIf":
            orientation = _orientation(body)
        is_animated |= kind == b"acTL"
        is_over = kind == b"IEND"
    if size is None or not is_over:
        raise UnreadableImageError("is a PNG that is cut off")
    return Header(PNG, *size, orientation, is_animated)


def _png_chunks(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    place = len(PNG_SIGNATURE)
    while place < len(data):
        length, kind = struct.unpack_from(">I4s", data, place)
        end = place + 8 + length
        body = data[place + 8 : end]
        (checksum,) = struct.unpack_from(">I", data, end)
        if zlib.crc32(body, zlib.crc32(kind)) != checksum:
            raise UnreadableImageError("is a PNG with a wrong checksum: its bytes were changed on the way")
        yield kind, body
        if kind == b"IEND":
            return
        place = end + 4


def _read_jpeg(data: bytes) -> Header:
    size, orientation, place = None, 1, 2
    while True:
        start, marker = struct.unpack_from("BB", data, place)
        if start != 0xFF:
            raise UnreadableImageError("is a JPEG whose segments do not follow each other")
        if marker == 0xFF or marker in BARE_MARKERS:
            place += 1 if marker == 0xFF else 2
            continue
        if marker == END_OF_IMAGE:
            raise UnreadableImageError("is a JPEG that ends before its pixels")
        (length,) = struct.unpack_from(">H", data, place + 2)
        body = place + 4
        if marker == START_OF_SCAN:
            break
        if marker in FRAME_MARKERS:
            height, width = struct.unpack_from(">HH", data, body + 1)
            size = (width, height)
        elif marker == EXIF_SEGMENT and data.startswith(EXIF_PREFIX, body):
            orientation = _orientation(data[body + len(EXIF_PREFIX) : place + 2 + length])
        place += 2 + max(length, 2)
    if size is None or data.find(bytes((0xFF, END_OF_IMAGE)), place) < 0:
        raise UnreadableImageError("is a JPEG that is cut off")
    return Header(JPEG, *size, orientation)


def _read_webp(data: bytes) -> Header:
    (length,) = struct.unpack_from("<I", data, 4)
    if len(data) < 8 + length:
        raise UnreadableImageError("is a WebP that is cut off")
    header, orientation, place = None, 1, 12
    while place + 8 <= 8 + length:
        kind, size = struct.unpack_from("<4sI", data, place)
        body = place + 8
        if header is None:
            header = _webp_size(kind, data, body)
        if kind == b"EXIF":
            exif = data[body : body + size]
            orientation = _orientation(exif.removeprefix(EXIF_PREFIX))
        place = body + size + size % 2
    if header is None or place > 8 + length + 1:
        raise UnreadableImageError("is a WebP that is cut off")
    width, height, is_animated = header
    return Header(WEBP, width, height, orientation, is_animated)


def _webp_size(kind: bytes, data: bytes, body: int) -> tuple[int, int, bool]:
    """Returns width, height and whether it moves, by the first chunk of a WebP."""
    if kind == b"VP8X":
        flags, low_w, high_w, low_h, high_h = struct.unpack_from("<B3xHBHB", data, body)
        return 1 + low_w + (high_w << 16), 1 + low_h + (high_h << 16), bool(flags & WEBP_ANIMATED)
    if kind == b"VP8L":
        (bits,) = struct.unpack_from("<I", data, body + 1)
        return 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF), False
    if kind == b"VP8 ":
        width, height = struct.unpack_from("<HH", data, body + 6)
        return width & 0x3FFF, height & 0x3FFF, False
    raise UnreadableImageError("is a WebP without a picture")


def _orientation(exif: bytes) -> int:
    """Returns the orientation that a block of EXIF names; upright where it names none that there is."""
    order = {b"II": "<", b"MM": ">"}.get(exif[:2])
    if order is None:
        return 1
    try:
        (place,) = struct.unpack_from(f"{order}I", exif, 4)
        (count,) = struct.unpack_from(f"{order}H", exif, place)
        for entry in range(count):
            tag, kind, number, value = struct.unpack_from(f"{order}HHIH", exif, place + 2 + 12 * entry)
            if tag == ORIENTATION_TAG:
                return int(value) if 1 <= value <= 8 and kind == 3 and number == 1 else 1
    except struct.error:
        return 1
    return 1
