"""Silence on stderr while libraries are imported: they print about kernels that this machine lacks.

Imports nothing heavy. Invariant: an exception still tells itself once the block is over.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator


@contextlib.contextmanager
def hushed_stderr() -> Iterator[None]:
    """Silences the process's stderr for the block."""
    kept = os.dup(2)
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
