"""What people see of the stack: one line a service, and what to do next.

Knows nothing of processes but what a `Child` tells.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from darkroom.client import DEFAULT_ADDRESS
from services.stack.child import Child


class ConsoleReporter:
    """Prints lines; in a terminal with colours. An embedded stack, another program's, gives no advice."""

    def __init__(self, console: Console, data_dir: Path, *, is_embedded: bool = False) -> None:
        self._console = console
        self._data_dir = data_dir
        self._is_embedded = is_embedded
        self._status = console.status("")

    def starting(self, names: Sequence[str]) -> None:
        self._status.update(f"starting {', '.join(names)} …")
        self._status.start()

    def serving(self, child: Child) -> None:
        detail = f" {child.service.detail}" if child.service.detail not in ("", "auto") else ""
        label = f"{child.service.name}{detail}"
        self._console.print(
            f"[green]✓[/] {escape(label):<18} {child.address:<22} [dim]{child.ready_after_s:4.1f} s[/]", highlight=False
        )

    def ready(self, gateway: Child, seconds: float) -> None:
        self._status.stop()
        if self._is_embedded:
            return
        address = "" if gateway.address == DEFAULT_ADDRESS else f" --address {shlex.quote(gateway.address)}"
        self._console.print(
            f"\n[bold]Darkroom is ready[/] after {seconds:.1f} s. Try, in another terminal:\n"
            f'  darkroom generate "a red apple"{address}\n'
            f"[dim]Logs are in {escape(str(self._data_dir / 'logs'))}. Ctrl-C stops everything.[/]",
            highlight=False,
            soft_wrap=True,
        )

    def died(self, child: Child, pause_s: float) -> None:
        self._print("[yellow]![/]", f"{child.describe_end()}\n  starting it again in {pause_s:.1f} s")

    def is_back(self, child: Child) -> None:
        self._print("[green]✓[/]", f"{child.service.name} serves again at {child.address}")

    def stopping(self) -> None:
        self._status.update("stopping (Ctrl-C again to kill) …")
        self._status.start()

    def stopped(self) -> None:
        self._status.stop()
        if not self._is_embedded:
            self._console.print("[dim]stopped; nothing is left running[/]")

    def failed(self, text: str) -> None:
        self._status.stop()
        self._print("[red]✗[/]", text)

    def _print(self, mark: str, text: str) -> None:
        self._console.print(f"{mark} {escape(text)}", highlight=False, soft_wrap=True)
