"""Names of stored files: which are allowed.

Knows nothing of stores. Invariant: a key that passes leads to one place inside of its store, on every file system and
object store alike.
"""

from __future__ import annotations

import re

# The longest key of S3, GCS and Azure alike is 1,024 bytes; the longest name of a file is 255, and drafts add to it.
MAX_KEY_BYTES = 900
MAX_SEGMENT_BYTES = 200
# A name that begins with a dot is the store's own.
SEGMENT = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._=+@-]*")


def check_key(key: str) -> str:
    """Returns the key.

    Raises:
        ValueError: it is not `segment/segment/…` of letters, digits and `._=+@-`, or a segment begins with a dot.
    """
    segments = key.split("/")
    fits = len(key) <= MAX_KEY_BYTES and all(len(segment) <= MAX_SEGMENT_BYTES for segment in segments)
    if not fits or not all(SEGMENT.fullmatch(segment) for segment in segments):
        raise ValueError(
            f"{key[:200]!r} is no key: segments of letters, digits and ._=+@- that begin with none of .=+@- are, "
            f"with / between them, each at most {MAX_SEGMENT_BYTES} long and {MAX_KEY_BYTES} together"
        )
    return key


def check_prefix(prefix: str) -> str:
    """Returns what keys may begin with: nothing, segments and a slash, or a piece of a key.

    Raises:
        ValueError: no key begins so.
    """
    if prefix:
        check_key(prefix.removesuffix("/"))
    return prefix
