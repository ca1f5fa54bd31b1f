"""Folders that builds write in: one each, held by a lock, so that what dead builders left is told from what lives.

Knows nothing of builds. Invariant: a folder whose lock somebody holds is never swept.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

LOCK = "lock"
# A folder this young may not be locked yet.
YOUNG_S = 60.0


@contextlib.contextmanager
def work_folder(root: Path) -> Iterator[Path]:
    """Makes a folder for one build, and removes it with everything in it."""
    root.mkdir(parents=True, exist_ok=True, mode=0o700)
    folder = Path(tempfile.mkdtemp(dir=root))
    handle = os.open(folder / LOCK, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(handle)


def sweep(root: Path) -> int:
    """Removes the folders that no living builder holds; returns how many."""
    num_swept = 0
    for folder in sorted(root.glob("*")) if root.is_dir() else []:
        with contextlib.suppress(OSError):
            if time.time() - folder.stat().st_mtime < YOUNG_S:
                continue
            handle = os.open(folder / LOCK, os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
                num_swept += 1
            finally:
                os.close(handle)
    return num_swept
