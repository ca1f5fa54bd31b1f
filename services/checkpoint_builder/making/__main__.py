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
from pathlib import Path

from google.protobuf import json_format

from darkroom.rpc.errors import DarkroomError, DiskFullError, InternalError, OutOfMemoryError, error_to_message
from darkroom.rpc.logs import configure_logs, log
from darkroom.v1 import build_pb2
from services.checkpoint_builder.config import BuilderSettings
from services.checkpoint_builder.lifeline import end_with_parent
from services.checkpoint_builder.making.reporting import Reporter


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
