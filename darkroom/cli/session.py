"""What commands share: where the gateway is, and how an errand is run so that Ctrl-C ends it cleanly.

Invariant: an interrupted errand has cleaned up, its jobs cancelled, before the command exits.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from darkroom.cli.failures import EXIT_USAGE, UserError

if TYPE_CHECKING:
    from rich.console import Console

    from darkroom.client import AsyncClient

T = TypeVar("T")
# A gateway that restarts is waited for this long.
PATIENCE_S = 15.0
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
Address = Annotated[
    str,
    typer.Option(
        "--address",
        "-a",
        envvar="DARKROOM_ADDRESS",
        metavar="HOST:PORT",
        help="Where the gateway is.",
        show_default=True,
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
# The client's own default, written once more because importing the client takes longer than printing help.
DEFAULT = "127.0.0.1:50051"


def output_console() -> Console:
    """Returns the console of stdout. Where that is no terminal, lines are long enough to keep a table's cells whole."""
    from rich.console import Console

    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=200)


def with_client(address: str, errand: Callable[[AsyncClient], Awaitable[T]], tenant: str | None = None) -> T:
    """Runs an errand with a client of the gateway at `address`, on a tenant's behalf."""

    from darkroom.client import AsyncClient

    async def run() -> T:
        try:
            client = AsyncClient(address, patience_s=PATIENCE_S, tenant=tenant)
        except ValueError as wrong:
            raise UserError(str(wrong), "Write --address host:port.", EXIT_USAGE) from None
        async with client:
            return await errand(client)

    return run_errand(run)


def run_errand(errand: Callable[[], Awaitable[T]]) -> T:
    """Runs an errand; SIGINT, SIGTERM and SIGHUP cancel it, and it ends when it has cleaned up.

    Raises:
        KeyboardInterrupt: it was ended by Ctrl-C.
        typer.Exit: it was ended by another signal.
    """
    ended_by: list[int] = []

    async def run() -> T:
        task = asyncio.current_task()
        assert task is not None
        loop = asyncio.get_running_loop()

        def end(number: int) -> None:
            ended_by.append(number)
            task.cancel()

        for number in SIGNALS:
            loop.add_signal_handler(number, end, number)
        return await errand()

    try:
        return asyncio.run(run())
    except asyncio.CancelledError:
        if not ended_by or ended_by[0] == signal.SIGINT:
            raise KeyboardInterrupt from None
        raise typer.Exit(128 + ended_by[0]) from None
