"""Live progress of a build on stderr: a bar a phase, with bytes and layers.

Knows nothing of builders: it is fed builds. Where stderr is no terminal it prints one line a finished phase.
"""

from __future__ import annotations

import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Column

from darkroom.cli.text import format_bytes, format_seconds, name_of, shorten
from darkroom.v1 import build_pb2

LABELS = {
    build_pb2.BUILD_PHASE_FETCHING: "fetching",
    build_pb2.BUILD_PHASE_HASHING: "looking for the same bytes",
    build_pb2.BUILD_PHASE_QUANTISING: "quantising",
    build_pb2.BUILD_PHASE_COMPARING: "comparing every tensor",
    build_pb2.BUILD_PHASE_PICTURING: "making pictures",
    build_pb2.BUILD_PHASE_STORING: "storing",
}


class BuildDisplay:
    """Shows one build while its block is open."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True)
        self._is_plain = not self._console.is_terminal
        self._progress = Progress(
            SpinnerColumn("dots", finished_text="[green]✓[/]"),
            TextColumn("{task.description}"),
            BarColumn(28, complete_style="cyan", finished_style="green", pulse_style="cyan"),
            TextColumn("{task.fields[amount]:>19}"),
            TimeElapsedColumn(),
            TextColumn("[dim]{task.fields[detail]}", table_column=Column(no_wrap=True, overflow="ellipsis")),
            console=self._console,
            disable=self._is_plain,
        )
        self._phase: tuple[int, str] = (0, "")
        self._task: TaskID | None = None
        self._began_s = time.monotonic()
        self._amount = ""

    def __enter__(self) -> Self:
        if not self._is_plain:
            self._progress.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, _: TracebackType | None) -> None:
        if kind is None:
            self._finish()
        if not self._is_plain:
            self._progress.stop()

    def show(self, build: build_pb2.Build) -> None:
        """Shows a state of the build."""
        news = build.progress
        phase = (int(news.phase), news.component)
        if not news.phase:
            return
        if phase != self._phase:
            self._start(phase)
        self._amount = _amount(news)
        if self._task is not None:
            detail = f"{news.num_layers} layers, {news.detail}" if news.num_layers else news.detail
            self._progress.update(
                self._task,
                total=news.total or None,
                completed=news.completed,
                amount=self._amount,
                detail=shorten(detail, 60),
            )

    def _start(self, phase: tuple[int, str]) -> None:
        self._finish()
        self._phase, self._began_s = phase, time.monotonic()
        if not self._is_plain:
            self._task = self._progress.add_task(f"{self._label():<42}", total=None, amount="", detail="")

    def _finish(self) -> None:
        if not self._phase[0]:
            return
        seconds = format_seconds(time.monotonic() - self._began_s)
        if self._task is not None:
            task = self._progress.tasks[self._progress.task_ids.index(self._task)]
            total = task.total or 1
            self._progress.update(self._task, total=total, completed=total, detail="")
            self._progress.stop_task(self._task)
        else:
            self._console.print(f"{self._label()} {self._amount}: {seconds}".replace(" :", ":"), highlight=False)
        self._phase, self._task, self._amount = (0, ""), None, ""

    def _label(self) -> str:
        number, component = self._phase
        label = LABELS.get(number) or name_of(build_pb2.BuildPhase, number, "BUILD_PHASE_")  # type: ignore[call-overload]
        return (
            f"{label} of {component}"
            if component and number == build_pb2.BUILD_PHASE_COMPARING
            else (f"{label} {component}" if component else str(label))
        )


def _amount(news: build_pb2.BuildProgress) -> str:
    if not news.total:
        return ""
    if news.phase == build_pb2.BUILD_PHASE_PICTURING:
        return f"{news.completed}/{news.total}"
    return f"{format_bytes(news.completed)}/{format_bytes(news.total)}"
