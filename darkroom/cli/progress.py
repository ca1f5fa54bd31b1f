"""Live progress of jobs on stderr: a bar a stage and step for one job, a bar a job for several.

Knows nothing of clients: it is fed events. Where stderr is no terminal it prints one line a finished stage.
"""

from __future__ import annotations

import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, SpinnerColumn, Task, TaskID, TextColumn
from rich.table import Column
from rich.text import Text

from darkroom.cli.text import format_bytes, format_seconds, phase_of, shorten, state_of
from darkroom.v1 import generation_pb2, job_pb2, worker_pb2

QUEUED = "queued"
# A wait that nobody notices is no stage.
SHORT_WAIT_S = 0.3
PHASE_LABELS = {
    "downloading": "downloading weights",
    "assembling": "loading the model",
    "compiling": "compiling",
    "encoding": "reading the prompt",
    "denoising": "denoising",
    "decoding": "decoding",
    "saving": "storing",
}


class Stages:
    """The stages of one errand, one after the other, each with its bar.

    Args:
        console: stderr.
        label: put before each stage; empty for a single job.
    """

    def __init__(self, console: Console, progress: Progress, *, is_plain: bool) -> None:
        self._console = console
        self._progress = progress
        self._is_plain = is_plain
        self._phase = ""
        self._task: TaskID | None = None
        self._began_s = time.monotonic()
        self._total = 0

    def show(self, progress: generation_pb2.Progress) -> None:
        """Shows a stage; the one before is finished by that."""
        phase = phase_of(progress)
        if phase == "unspecified":
            return
        if phase != self._phase:
            self._start(phase)
        self._total = progress.total
        if self._task is not None:
            is_bytes = phase == "downloading"
            amount = _amount(progress, is_bytes)
            self._progress.update(
                self._task,
                total=progress.total or None,
                completed=progress.completed,
                amount=amount,
                detail=shorten(progress.detail, 80),
            )

    def finish(self) -> None:
        """Ends the stage that runs."""
        if not self._phase:
            return
        seconds = time.monotonic() - self._began_s
        if self._task is not None and self._phase == QUEUED and seconds < SHORT_WAIT_S:
            self._progress.remove_task(self._task)
        elif self._task is not None:
            task = self._progress.tasks[self._progress.task_ids.index(self._task)]
            total = task.total or 1
            self._progress.update(self._task, total=total, completed=total, detail="", seconds=seconds)
            self._progress.stop_task(self._task)
        elif self._is_plain and (self._phase != QUEUED or seconds >= SHORT_WAIT_S):
            steps = f" {self._total} steps" if self._phase == "denoising" else ""
            self._console.print(f"{_label(self._phase)}{steps}: {format_seconds(seconds)}", highlight=False)
        self._phase, self._task = "", None

    def _start(self, phase: str) -> None:
        self.finish()
        self._phase, self._began_s = phase, time.monotonic()
        if not self._is_plain:
            self._task = self._progress.add_task(
                _label(phase), total=None, amount="", detail="", seconds=None, began_s=self._began_s
            )


class JobsDisplay:
    """Shows one or more jobs while its block is open."""

    def __init__(self, console: Console, num_jobs: int) -> None:
        self._console = console
        self._is_plain = not console.is_terminal
        self._is_single = num_jobs == 1
        self._progress = Progress(
            SpinnerColumn("dots", finished_text="[green]✓[/]"),
            TextColumn("{task.description:<22}"),
            BarColumn(28, complete_style="cyan", finished_style="green", pulse_style="cyan"),
            TextColumn("{task.fields[amount]:>12}"),
            _StageTime(),
            TextColumn(
                "[dim]{task.fields[detail]}", markup=True, table_column=Column(no_wrap=True, overflow="ellipsis")
            ),
            console=console,
            disable=self._is_plain,
        )
        self._stages = Stages(console, self._progress, is_plain=self._is_plain)
        self._rows: dict[str, TaskID] = {}

    def __enter__(self) -> Self:
        if not self._is_plain:
            self._progress.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, _: TracebackType | None) -> None:
        if kind is None:
            self._stages.finish()
        if not self._is_plain:
            self._progress.stop()

    def show(self, job: job_pb2.Job, event: job_pb2.JobEvent) -> None:
        """Shows an event of a job."""
        progress = event.job.progress if event.HasField("job") else event.progress
        if self._is_single:
            self._show_stage(event, progress)
        else:
            self._show_row(job, event, progress)

    def show_load(self, event: worker_pb2.LoadEvent) -> None:
        """Shows an event of a load that no job asked for."""
        if event.HasField("progress"):
            self._stages.show(event.progress)

    def finish(self, job: job_pb2.Job, word: str) -> None:
        """Ends a job's row with one word."""
        if self._is_single:
            self._stages.finish()
        elif job.id in self._rows:
            self._progress.update(self._rows[job.id], completed=1.0, total=1.0, amount=word)

    def _show_stage(self, event: job_pb2.JobEvent, progress: generation_pb2.Progress) -> None:
        if event.HasField("job") and event.job.state == job_pb2.JOB_STATE_QUEUED:
            detail = progress.detail or "waiting for a worker"
            self._stages.show(generation_pb2.Progress(phase=generation_pb2.PHASE_QUEUED, detail=detail))
        elif not event.HasField("job") or event.job.state == job_pb2.JOB_STATE_RUNNING:
            self._stages.show(progress)

    def _show_row(self, job: job_pb2.Job, event: job_pb2.JobEvent, progress: generation_pb2.Progress) -> None:
        if job.id not in self._rows:
            self._rows[job.id] = self._progress.add_task(
                f"seed {job.request.seed}", total=1.0, amount=QUEUED, detail="", seconds=None, began_s=time.monotonic()
            )
        state = state_of(event.job) if event.HasField("job") else "running"
        word = phase_of(progress) if state == "running" and progress.phase else state
        self._progress.update(self._rows[job.id], completed=min(progress.fraction, 0.999), amount=word)


class _StageTime(ProgressColumn):
    """How long a stage took, or has taken so far."""

    def render(self, task: Task) -> Text:
        seconds = task.fields["seconds"]
        if seconds is None:
            seconds = time.monotonic() - task.fields["began_s"]
        return Text(f"{format_seconds(seconds):>9}", style="dim")


def _label(phase: str) -> str:
    return PHASE_LABELS.get(phase, phase)


def _amount(progress: generation_pb2.Progress, is_bytes: bool) -> str:
    if not progress.total:
        return ""
    if is_bytes:
        return f"{format_bytes(progress.completed)}/{format_bytes(progress.total)}"
    return f"{progress.completed}/{progress.total}"
