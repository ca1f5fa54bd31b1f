"""Pictures that a request brings, from what a caller has at hand: paths, bytes, or objects that can save themselves.

Needs no package for pictures. Invariant: what leaves has passed the gateway's own rules; what does not is refused here,
by its place and its name.
"""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from typing import IO, Any, Protocol, TypeAlias, runtime_checkable

from darkroom.images import MAX_IMAGE_BYTES, image_violations
from darkroom.rpc.errors import InvalidRequestError
from darkroom.v1 import generation_pb2


@runtime_checkable
class Savable(Protocol):
    """What can write itself to a file as PNG: a Pillow image."""

    def save(self, fp: IO[bytes], format: str) -> Any:
        """Writes the file."""


ImageSource: TypeAlias = str | os.PathLike[str] | bytes | Savable


def read_images(sources: ImageSource | Sequence[ImageSource]) -> list[generation_pb2.InputImage]:
    """Returns the pictures as a request carries them.

    Args:
        sources: one, or several in the order in which the prompt speaks of them. Pillow images go as PNG.

    Raises:
        InvalidRequestError: one can't be read, or breaks a rule.
    """
    is_many = isinstance(sources, Sequence) and not isinstance(sources, str | bytes)
    listed: list[Any] = list(sources) if is_many else [sources]  # type: ignore[arg-type]
    images, violations = [], {}
    for place, source in enumerate(listed):
        try:
            images.append(generation_pb2.InputImage(data=_read(source)))
        except (OSError, TypeError, ValueError) as problem:
            violations[f"request.images[{place}]"] = f"{_name_of(source)} can't be read: {problem}"
    if violations:
        raise InvalidRequestError(violations)
    found = image_violations(images, "request.images")
    for place, source in enumerate(listed):
        field = f"request.images[{place}].data"
        if field in found:
            found[field] = f"{_name_of(source)} {found[field]}"
    if found:
        raise InvalidRequestError(found)
    return images


def _read(source: Any) -> bytes:
    if isinstance(source, bytes):
        return source
    if isinstance(source, str | os.PathLike):
        with open(source, "rb") as file:
            # A byte more than the rule allows tells that it is broken; a film is not read to its end.
            return file.read(MAX_IMAGE_BYTES + 1)
    if isinstance(source, Savable):
        target = io.BytesIO()
        source.save(target, format="PNG")
        return target.getvalue()
    raise TypeError("give a path, the bytes of a file, or a Pillow image")


def _name_of(source: Any) -> str:
    if isinstance(source, str | os.PathLike):
        return repr(os.fspath(source))
    return type(source).__name__
