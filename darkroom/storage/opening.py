"""From what an operator wrote to a store.

Knows nothing of either kind's inside. Invariant: only a URL loads fsspec.
"""

from __future__ import annotations

import os
from pathlib import Path

from darkroom.storage.local import LocalStore
from darkroom.storage.store import Store


def open_store(place: str | os.PathLike[str]) -> Store:
    """Opens a directory, made where it is absent, or an object store.

    Args:
        place: a path, `file:///path`, or the URL of a bucket and a folder in it as fsspec has them: `s3://bucket/folder`.

    Raises:
        ValueError: a protocol without conditional writes, or an incomplete URL.
        ImportError: the protocol's package is not installed.
        OSError: the directory can't be made.
    """
    text = os.fspath(place)
    if text.startswith("file://"):
        text = text.removeprefix("file://")
    if "://" not in text:
        return LocalStore(Path(text))
    from darkroom.storage.objects import ObjectStore

    return ObjectStore(text)
