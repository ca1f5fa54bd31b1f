"""A clock that can be stepped: Debian's libfaketime, preloaded into a process; monotonic clocks go on undisturbed.

Knows nothing of what it is preloaded into. Where there is no libfaketime, `find_library` says so, and no clock is
stepped.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

VARIABLE = "CHAOS_LIBFAKETIME"
CACHE = Path(__file__).resolve().parents[2] / ".cache" / "libfaketime"


def find_library(*, may_fetch: bool = False) -> Path | None:
    """Returns libfaketime's path: the one named in CHAOS_LIBFAKETIME, installed, unpacked before, or fetched now."""
    named = os.environ.get(VARIABLE)
    if named:
        return Path(named)
    for folder in (Path("/usr/lib"), CACHE):
        for found in sorted(folder.glob("**/faketime/libfaketime.so.1")):
            return found
    return _fetch() if may_fetch else None


def _fetch() -> Path | None:
    """Unpacks Debian's package into .cache: no root, and nothing of the system is touched."""
    CACHE.mkdir(parents=True, exist_ok=True)
    script = "apt-get -qq download libfaketime && dpkg -x libfaketime_*.deb . && rm libfaketime_*.deb"
    try:
        subprocess.run(["bash", "-c", script], cwd=CACHE, check=True, capture_output=True, timeout=60)
    except (OSError, subprocess.SubprocessError):
        return None
    return find_library()


class Clock:
    """The wall clock of one process."""

    def __init__(self, library: Path | None, file: Path) -> None:
        self.is_real = library is None
        self._library = library
        self._file = file
        self.step(0.0)

    @property
    def environment(self) -> dict[str, str]:
        """What the process has to be started with."""
        if self._library is None:
            return {}
        return {
            "LD_PRELOAD": str(self._library),
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }

    def step(self, seconds: float) -> None:
        """Sets the clock this far from the real one."""
        draft = self._file.with_suffix(".part")
        draft.write_text(f"{seconds:+.3f}\n")
        draft.rename(self._file)
