"""What clients and nemesis saw, in the order they saw it: JSON lines on disk.

Knows nothing of what is judged. Invariant: a line is written when the thing was seen, never put right later.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any


class History:
    """One run's. Times are seconds since it was opened."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._began_at = time.monotonic()
        self._file = path.open("w", encoding="utf-8")

    @property
    def now_s(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._began_at

    def tell(self, what: str, **facts: Any) -> None:
        """Writes a line."""
        self._file.write(json.dumps({"t": round(self.now_s, 3), "what": what, **facts}) + "\n")

    def close(self) -> None:
        """Nothing more will be told."""
        self._file.close()

    def lines(self, *what: str) -> Iterator[dict[str, Any]]:
        """Yields what was told, of the given kinds or all."""
        if not self._file.closed:
            self._file.flush()
        with self.path.open(encoding="utf-8") as file:
            for line in file:
                entry = json.loads(line)
                if not what or entry["what"] in what:
                    yield entry
