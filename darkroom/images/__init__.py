"""Pictures that requests bring, judged by their first bytes: no pixel is decoded, and no package for it is needed."""

from darkroom.images.header import Header, UnreadableImageError, read_header
from darkroom.images.rules import (
    MAX_IMAGE_BYTES,
    MAX_IMAGES_BYTES,
    MAX_MESSAGE_BYTES,
    count_violations,
    describe_image,
    image_violations,
    size_after,
)

__all__ = [
    "MAX_IMAGES_BYTES",
    "MAX_IMAGE_BYTES",
    "MAX_MESSAGE_BYTES",
    "Header",
    "UnreadableImageError",
    "count_violations",
    "describe_image",
    "image_violations",
    "read_header",
    "size_after",
]
