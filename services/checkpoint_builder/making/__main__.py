"""`python -m services.checkpoint_builder.making`: makes one order. Started by the builder, not by hand.

It ends with its parent. Exit 0: the folder holds every component's files and manifest. Exit 1: the last line has the
error. A killed one has told nothing false: manifests come last.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import time
from pathlib import Path
from typing import TextIO

from google.protobuf import json_format

from darkroom.rpc.errors import DarkroomError, DiskFullError, InternalError, OutOfMemoryError, error_to_message
from darkroom.rpc.logs import configure_logs, log
from darkroom.v1 import build_pb2
from services.checkpoint_builder.config import BuilderSettings
from services.checkpoint_builder.lifeline import end_with_parent

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


def main() -> None:
    parser = argparse.ArgumentParser(description="Makes one order; started by the builder, not by hand.")
    parser.add_argument("--order", required=True, help="a BuildOrder as JSON")
    parser.add_argument("--settings", required=True, help="the builder's settings as JSON")
    parser.add_argument("--folder", required=True, type=Path, help="where to write; exists")
    parser.add_argument("--events", required=True, type=int, help="file descriptor for lines of JSON")
    options = parser.parse_args()
    end_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    settings = BuilderSettings.model_validate_json(options.settings)
    configure_logs("making", settings.log_level)
    # It warns of kernels for other machines.
    logging.getLogger("torchao").setLevel(logging.ERROR)
    reporter = Reporter(os.fdopen(options.events, "w"))
    order = json_format.Parse(options.order, build_pb2.BuildOrder())
    try:
        # Here, so that what the libraries fail with is told too.
        from services.checkpoint_builder.making.run import run

        run(order, settings, options.folder, reporter)
    except DarkroomError as failure:
        reporter.say(build_pb2.Build(error=error_to_message(failure)))
        sys.exit(1)
    except Exception as failure:  # the process's main: the builder gets every failure as data
        log.exception("making_failed")
        reporter.say(build_pb2.Build(error=error_to_message(_explained(failure))))
        sys.exit(1)


def _explained(failure: Exception) -> DarkroomError:
    text = f"{type(failure).__name__}: {str(failure)[:300]}"
    if isinstance(failure, OSError) and failure.errno == 28:
        return DiskFullError(f"the disk of the builder's data folder is full ({text})")
    if isinstance(failure, MemoryError) or type(failure).__name__ == "OutOfMemoryError":
        return OutOfMemoryError(f"the build ran out of memory ({text})")
    return InternalError(f"the build failed with {text}")


if __name__ == "__main__":
    main()
