"""The rules for pictures that requests bring: how large, how many bytes, of which kind; and the size of what comes out.

Knows nothing of models but their limits. Invariant: a picture that passes decodes to at most MAX_IMAGE_PIXELS, however
its file was made; what is wrong is told with its figure and the rule's.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence

from darkroom.images.header import Header, UnreadableImageError, read_header
from darkroom.v1 import generation_pb2, model_pb2

# One file, and all of a request: a message holds them inline. Pipelines take a picture at a megapixel or so, which is
# less than 3 MiB as PNG.
MAX_IMAGE_BYTES = 8 * 2**20
MAX_IMAGES_BYTES = 12 * 2**20
# A message with all of them, and whatever else a message without them may hold.
MAX_MESSAGE_BYTES = MAX_IMAGES_BYTES + 4 * 2**20
# 96 MiB of 8-bit RGB.
MAX_IMAGE_PIXELS = 2**25
# What FLUX.2's own pipelines ask for (diffusers 0.42.1, Flux2ImageProcessor.check_image_input); smaller or narrower
# pictures are nothing to edit for any model.
MIN_IMAGE_SIDE = 64
MAX_ASPECT_RATIO = 8


def count_violations(count: int, model: model_pb2.Model) -> dict[str, str]:
    """Returns what is wrong with a request that brings `count` pictures to a model, by field."""
    limits = model.limits
    most, needs = limits.max_reference_images, limits.image_input == model_pb2.IMAGE_INPUT_REQUIRED
    if needs and not most:
        return {"request.model": f"{model.name} starts from a picture, which requests can't bring to it yet"}
    if count > most:
        takes = f"takes at most {most}" if most else "paints from words alone; leave them out"
        return {"request.images": f"are {count}; {model.name} {takes}"}
    if needs and not count:
        return {"request.images": f"are missing; {model.name} changes pictures: bring 1 to {most}"}
    return {}


def image_violations(images: Sequence[generation_pb2.InputImage], path: str) -> dict[str, str]:
    """Returns what is wrong with pictures as they are sent, by field.

    Args:
        images: with their files.
        path: of the repeated field: "request.images".
    """
    found = {}
    for place, image in enumerate(images):
        field = f"{path}[{place}]"
        if image.role not in generation_pb2.ImageRole.values():
            known = ", ".join(generation_pb2.ImageRole.keys()[1:])
            found[f"{field}.role"] = f"is {image.role}; known are {known}"
        if problem := _problem(image.data):
            found[f"{field}.data"] = problem
        elif image.sha256 and image.sha256 != hashlib.sha256(image.data).hexdigest():
            found[f"{field}.sha256"] = "is not that of the file; leave it out, or send the file that it is of"
    total = sum(len(image.data) for image in images)
    if total > MAX_IMAGES_BYTES and not found:
        found[path] = f"have {total:,} bytes together; a request carries at most {MAX_IMAGES_BYTES:,}"
    return found


def describe_image(image: generation_pb2.InputImage) -> generation_pb2.InputImage:
    """Returns a picture that passed, as a job's copy names it: without its file."""
    header = read_header(image.data)
    width, height = header.shown_size
    return generation_pb2.InputImage(
        role=image.role or generation_pb2.IMAGE_ROLE_REFERENCE,
        sha256=hashlib.sha256(image.data).hexdigest(),
        size_bytes=len(image.data),
        content_type=header.content_type,
        width=width,
        height=height,
    )


def size_after(
    image: generation_pb2.InputImage, defaults: model_pb2.GenerationDefaults, limits: model_pb2.GenerationLimits
) -> tuple[int, int]:
    """Returns the output's size where a request names none: the picture's proportions, the model's own area.

    Args:
        image: described: its width and height count.
        defaults: whose width times height is the area.
        limits: the lattice; sides are rounded to it and kept within it, the longer one first.
    """
    multiple = max(1, limits.side_multiple)
    ratio = image.width / image.height

    def on_lattice(side: float) -> int:
        low, high = -(-limits.min_side // multiple), limits.max_side // multiple
        return multiple * min(max(round(side / multiple), low), high)

    area = defaults.width * defaults.height
    if ratio >= 1:
        width = on_lattice(math.sqrt(area * ratio))
        return width, on_lattice(min(math.sqrt(area / ratio), width / ratio))
    height = on_lattice(math.sqrt(area / ratio))
    return on_lattice(min(math.sqrt(area * ratio), height * ratio)), height


def _problem(data: bytes) -> str:
    """Returns what is wrong with a file; empty where nothing is."""
    if not data:
        return "is empty; send the bytes of a PNG, JPEG or WebP file"
    if len(data) > MAX_IMAGE_BYTES:
        return f"has {len(data):,} bytes; a picture has at most {MAX_IMAGE_BYTES:,}"
    try:
        header = read_header(data)
    except UnreadableImageError as fault:
        return f"{fault}; send a whole PNG, JPEG or WebP file"
    return _size_problem(header)


def _size_problem(header: Header) -> str:
    size = f"{header.width}x{header.height}"
    if header.is_animated:
        return "moves; send one picture of it as a still file"
    if min(header.width, header.height) < MIN_IMAGE_SIDE:
        return f"is {size} pixels; each side has at least {MIN_IMAGE_SIDE}"
    if header.width * header.height > MAX_IMAGE_PIXELS:
        return f"is {size}, {header.width * header.height:,} pixels; a picture has at most {MAX_IMAGE_PIXELS:,}"
    if max(header.width, header.height) > MAX_ASPECT_RATIO * min(header.width, header.height):
        return f"is {size} pixels; the longer side is at most {MAX_ASPECT_RATIO} times the shorter"
    return ""
