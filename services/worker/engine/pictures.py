"""Pixels become a file: checked, encoded the same way every time, without a word about how they came to be.

Knows nothing of pipelines. Letters: H height, W width, C channels.
Invariant: what is returned was finite; the same pixels give the same bytes.
"""

from __future__ import annotations

import hashlib
import io
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from darkroom.rpc.errors import BrokenOutputError
from darkroom.v1 import generation_pb2

# PIL's name, MIME type and options of each format. Level 6 is zlib's own default; named so that it stays.
FORMATS: dict[int, tuple[str, str, dict[str, Any]]] = {
    generation_pb2.OUTPUT_FORMAT_PNG: ("PNG", "image/png", {"compress_level": 6}),
    generation_pb2.OUTPUT_FORMAT_JPEG: ("JPEG", "image/jpeg", {"quality": 95, "subsampling": 0}),
    generation_pb2.OUTPUT_FORMAT_WEBP: ("WEBP", "image/webp", {"lossless": True, "quality": 80, "method": 4}),
}


def quantise_pixels(values_HWC: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Returns 8-bit pixels, rounded as diffusers rounds them (`VaeImageProcessor.numpy_to_pil`).

    Args:
        values_HWC: float32 in 0..1.

    Raises:
        BrokenOutputError: a value is not finite.
    """
    if not np.isfinite(values_HWC).all():
        raise BrokenOutputError("the decoded picture holds values that are not finite", problem="non_finite_picture")
    pixels_HWC: NDArray[np.uint8] = (values_HWC * 255).round().astype(np.uint8)
    return pixels_HWC


def check_variety(pixels_HWC: NDArray[np.uint8], allows_constant: bool) -> generation_pb2.Engagement | None:
    """Returns what is told of a picture of one colour where the caller allows one; None for any other picture.

    Raises:
        BrokenOutputError: every pixel is the same, and that is not allowed.
    """
    if not (pixels_HWC == pixels_HWC[:1, :1]).all():
        return None
    colour = ",".join(map(str, pixels_HWC[0, 0].tolist()))
    if not allows_constant:
        raise BrokenOutputError(f"every pixel of the picture is the same ({colour})", problem="constant_picture")
    reason = f"every pixel is the same ({colour}), which the caller allows"
    return generation_pb2.Engagement(knob="constant_picture", requested="allowed", engaged="returned", reason=reason)


def encode(pixels_HWC: NDArray[np.uint8], format_number: int) -> tuple[bytes, str]:
    """Returns the file and its MIME type; an unspecified format is PNG."""
    name, content_type, options = FORMATS.get(format_number, FORMATS[generation_pb2.OUTPUT_FORMAT_PNG])
    file = io.BytesIO()
    Image.fromarray(pixels_HWC).save(file, format=name, **options)
    return file.getvalue(), content_type


def describe(data: bytes, content_type: str, pixels_HWC: NDArray[np.uint8], seed: int) -> generation_pb2.Output:
    """Returns what is told of a finished file."""
    height, width = pixels_HWC.shape[:2]
    return generation_pb2.Output(
        content_type=content_type,
        size_bytes=len(data),
        sha256=hashlib.sha256(data).hexdigest(),
        width=width,
        height=height,
        seed=seed,
    )
