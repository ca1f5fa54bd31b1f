"""The command line of the stack: options on top of the settings, and the run.

Knows nothing of how services are started. Invariant: no traceback for what can be expected.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
from collections.abc import Sequence
from functools import partial

from rich.console import Console

from darkroom.rpc.settings import PREFIX, describe_settings, load_settings
from services.stack.assemble import gateway_service, other_services, planner_service, worker_services
from services.stack.config import StackSettings
from services.stack.leash import PR_SET_PDEATHSIG, set_process_option
from services.stack.record import DataFolderBusyError, hold_folder
from services.stack.report import ConsoleReporter
from services.stack.stack import Stack

EXAMPLES = """
examples:
  python -m services
      one worker for each GPU, or one on the processor; the gateway on 127.0.0.1:50051
  python -m services --device cpu --listen 127.0.0.1:0 --data-dir /tmp/darkroom
      a second stack beside the first
  DARKROOM_REDIS_URL=redis://127.0.0.1:6379/0 python -m services
      with a Redis that runs already

Services read their own settings from the environment: python -m services.gateway --help.

settings of the stack (environment variables, or a file named by DARKROOM_ENV_FILE):
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the stack until a signal arrives; returns the exit status."""
    options = _parse(arguments)
    if options.exit_with_parent:
        set_process_option(PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != options.exit_with_parent:
            return 1
    for name in ("gateway_listen", "data_dir", "stack_workers", "stack_builder", "worker_device"):
        value = getattr(options, name)
        if value is not None:
            os.environ[PREFIX + name.upper()] = value
    settings = load_settings(StackSettings)
    console = Console()
    reporter = ConsoleReporter(console, settings.data_dir, is_embedded=options.exit_with_parent is not None)
    try:
        with hold_folder(settings.data_dir) as lock:
            status = asyncio.run(_run(settings, reporter, lock))
    except DataFolderBusyError as busy:
        reporter.failed(str(busy))
        return 1
    except OSError as problem:
        reporter.failed(f"{settings.data_dir} can't hold the data: {problem}; choose another --data-dir")
        return 1
    reporter.stopped()
    return status


async def _run(settings: StackSettings, reporter: ConsoleReporter, lock: int) -> int:
    stack = Stack(
        planner_service(settings),
        worker_services(settings),
        partial(gateway_service, settings),
        settings.data_dir,
        reporter,
        others=other_services(settings),
        grace_s=settings.grace_s,
        start_s=settings.stack_start_s,
        lock=lock,
    )
    return await stack.run()


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m services",
        description="The whole of Darkroom on this machine: planner, workers, gateway and Redis.",
        epilog=EXAMPLES + describe_settings(StackSettings),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--listen", dest="gateway_listen", metavar="ADDRESS", help="address of the gateway")
    parser.add_argument("--data-dir", metavar="FOLDER", help="where jobs, outputs and logs go")
    parser.add_argument(
        "--builder", dest="stack_builder", action="store_const", const="true", help="run a checkpoint builder too"
    )
    parser.add_argument("--workers", dest="stack_workers", metavar="N", help="how many workers; default one a device")
    parser.add_argument("--device", dest="worker_device", metavar="DEVICE", help='of every worker: "cpu", "cuda:0"')
    parser.add_argument("--exit-with-parent", type=int, metavar="PID", help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
