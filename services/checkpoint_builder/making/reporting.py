"""What the making process says while it works: lines of JSON, each a `Build` with what changed.

Knows nothing of who reads them. Invariant: a change of phase, and the last of a phase, are told at once.
"""

from __future__ import annotations

import time
from typing import TextIO

from google.protobuf import json_format

from darkroom.v1 import build_pb2

# Told at most this often; a change of phase at once.
PAUSE_S = 0.1


class Reporter:
    """Says what goes on, in lines of JSON."""

    def __init__(self, lines: TextIO) -> None:
        self._lines = lines
        self._told_at_s = 0.0
        self._phase = (-1, "")
        # Told with every progress.
        self.peak = build_pb2.BuildPeak()

    def progress(self, progress: build_pb2.BuildProgress) -> None:
        """The work went on."""
        phase, now_s = (int(progress.phase), progress.component), time.monotonic()
        is_last = progress.total and progress.completed >= progress.total
        if phase == self._phase and not is_last and now_s - self._told_at_s < PAUSE_S:
            return
        self._phase, self._told_at_s = phase, now_s
        self.say(build_pb2.Build(progress=progress, peak=self.peak))

    def say(self, build: build_pb2.Build) -> None:
        """Sends what changed."""
        self._lines.write(json_format.MessageToJson(build, indent=None) + "\n")
        self._lines.flush()
