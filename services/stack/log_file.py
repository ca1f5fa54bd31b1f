"""A service's log on disk: where it goes, and what the stack reads in it.

Knows of the lines only that they are JSON with an `event`, or a program's last words. Invariant: the service writes the
file itself, so it can go on logging while its stack dies.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

# A log that has grown past this is put aside once, when its service starts.
ROTATE_BYTES = 16 * 2**20
MAX_TAIL_BYTES = 64 * 2**10
MAX_TAIL_CHARACTERS = 240


class LogFile:
    """The log of one service, read from where its newest process began."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._start = 0

    def open(self) -> int:
        """Opens the file for a new process and returns the descriptor to hand over."""
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        if self.path.exists() and self.path.stat().st_size > ROTATE_BYTES:
            os.replace(self.path, self.path.with_suffix(".log.1"))
        descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._start = os.fstat(descriptor).st_size
        return descriptor

    def find_address(self) -> str | None:
        """Returns the address in the newest process's "serving" line, or None while there is none."""
        for line in self._lines():
            entry = _parse(line)
            if entry is not None and entry.get("event") == "serving":
                return str(entry.get("address"))
        return None

    def last_words(self, num_lines: int = 5) -> list[str]:
        """Returns the end of what the newest process wrote, for people."""
        spoken = [text for text in map(_for_people, self._lines()) if text]
        return spoken[-num_lines:]

    def _lines(self) -> list[str]:
        with open(self.path, "rb") as file:
            size_bytes = file.seek(0, os.SEEK_END)
            file.seek(max(self._start, size_bytes - MAX_TAIL_BYTES))
            text = file.read().decode(errors="replace")
        # A line without its end is still being written.
        return text.split("\n")[:-1]


def _parse(line: str) -> dict[str, Any] | None:
    try:
        entry = json.loads(line)
    except ValueError:
        return None
    return entry if isinstance(entry, dict) else None


def _for_people(line: str) -> str:
    entry = _parse(line)
    if entry is None:
        return line.rstrip()[:MAX_TAIL_CHARACTERS]
    hidden = ("event", "at", "level", "service", "settings")
    facts = " ".join(f"{key}={value}" for key, value in entry.items() if key not in hidden)
    return f"{entry.get('event', '')} {facts}".strip()[-MAX_TAIL_CHARACTERS:]
