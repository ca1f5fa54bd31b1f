"""`darkroom generate`: from a prompt to pictures on disk.

Knows nothing of how jobs are run. Invariant: leaving it, by Ctrl-C too, leaves no running job and no half-written file.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import typer

from darkroom.cli import options
from darkroom.cli.session import DEFAULT, Address

if TYPE_CHECKING:
    from rich.console import Console

    from darkroom.cli.destination import Destination
    from darkroom.cli.progress import JobsDisplay
    from darkroom.client import AsyncClient
    from darkroom.v1 import job_pb2, plan_pb2


def generate(
    prompt: options.Prompt,
    model: options.Model = "emoji",
    image: options.Images = None,
    size: options.Size = None,
    width: options.Side = None,
    height: options.Side = None,
    steps: options.Steps = None,
    guidance: options.Guidance = None,
    negative: options.Negative = None,
    seed: options.Seed = None,
    scheme: options.Scheme = None,
    source: options.Source = None,
    count: options.Count = 1,
    output: options.OutputPath = None,
    format: options.Format = None,
    priority: options.Priority = None,
    deadline: options.Deadline = None,
    tenant: options.Tenant = None,
    overwrite: options.Overwrite = False,
    detach: options.Detach = False,
    show: options.Show = True,
    address: Address = DEFAULT,
) -> None:
    """Make pictures of a text.

    [bold]Examples[/]

      darkroom generate "a red apple"

      darkroom generate "a red apple" --seed 7 --output apple.png

      darkroom generate "a sleeping cat, flat style" --count 4 --output cats/

      darkroom generate "a blue car" --steps 28 --guidance 4 --size 128x128

      darkroom generate "make it blue" --model flux.1-kontext-dev --image photo.jpg

      darkroom generate "a house" --scheme int8

      darkroom generate "a house" --model flux.1-dev --source random

      darkroom generate "a house" --output - | imgcat

      darkroom generate "a red apple" --priority high --deadline 30
    """
    from darkroom.cli.destination import Destination
    from darkroom.cli.session import with_client

    width, height = choose_size(size, width, height)
    destination = Destination(output, prompt, count, overwrite)
    fields = {
        "model": model,
        "images": image or None,
        "negative_prompt": negative,
        "width": width,
        "height": height,
        "steps": steps,
        "guidance": guidance,
        "seed": seed,
        "preferences": _preferences(scheme, source),
        "format": destination.choose_format(_known_format(format)),
        "priority": _known_priority(priority),
        "deadline_s": deadline,
    }
    if not detach:
        destination.prepare()
    order = Order(prompt, count, fields, destination, show)
    exit_code = with_client(address, order.submit_and_leave if detach else order.run, tenant)
    if exit_code:
        raise typer.Exit(exit_code)


@dataclass(frozen=True)
class Order:
    """What was asked for on the command line."""

    prompt: str
    count: int
    fields: dict[str, Any]
    destination: Destination
    is_shown: bool

    async def submit_and_leave(self, client: AsyncClient) -> int:
        """Submits, and prints the jobs' ids on stdout."""
        for job in await self._submit(client):
            typer.echo(job.id)
        return 0

    async def run(self, client: AsyncClient) -> int:
        """Submits, follows and saves. Returns the exit status: 1 if any picture failed."""
        from rich.console import Console

        from darkroom.cli.progress import JobsDisplay

        console = Console(stderr=True)
        jobs: Sequence[job_pb2.Job] = ()
        try:
            with JobsDisplay(console, self.count) as display:
                jobs = await self._submit(client)
                tasks = [asyncio.create_task(self._follow(client, job, display)) for job in jobs]
                try:
                    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
                finally:
                    await _settle(tasks)
        except asyncio.CancelledError:
            _tell_cancelled(console, jobs)
            raise
        return self._report(outcomes)

    async def _submit(self, client: AsyncClient) -> Sequence[job_pb2.Job]:
        if self.count == 1:
            return [await client.submit(self.prompt, **self.fields)]
        return await client.submit_many(self.prompt, count=self.count, **self.fields)

    async def _follow(self, client: AsyncClient, job: job_pb2.Job, display: JobsDisplay) -> tuple[Any, str]:
        """Returns the picture and where it was saved; empty for standard output."""
        from darkroom.client import DarkroomError, Picture

        try:
            async for event in client.follow(job):
                if isinstance(event, Picture):
                    path = "" if self.destination.is_stdout else str(self.destination.save(event))
                    display.finish(job, "saved")
                    return event, path
                display.show(job, event)
        except DarkroomError:
            display.finish(job, "failed")
            raise
        raise AssertionError("unreachable: following a job ends with its picture or an error")

    def _report(self, outcomes: Sequence[Any]) -> int:
        from rich.console import Console

        from darkroom.cli.failures import report_failure

        console = Console(soft_wrap=True, highlight=False)
        exit_code = 0
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                if not isinstance(outcome, Exception):
                    raise outcome
                exit_code = max(exit_code, report_failure(outcome))
            elif self.destination.is_stdout:
                sys.stdout.buffer.write(outcome[0].data)
                sys.stdout.buffer.flush()
            else:
                report_picture(console, *outcome, is_shown=self.is_shown)
        return exit_code


def report_picture(console: Console, picture: Any, path: str, *, is_shown: bool) -> None:
    """Shows a picture, what is to be said of it, and as the last line where it is."""
    describe_picture(console, picture, is_shown=is_shown)
    typer.echo(f"saved {path}")


def describe_picture(console: Console, picture: Any, *, is_shown: bool) -> None:
    """Shows a picture, what differs from what was asked, its size and its seed."""
    from rich.markup import escape

    from darkroom.cli.terminal_picture import show_picture
    from darkroom.cli.text import format_seconds

    if is_shown:
        show_picture(console, picture)
    for item in picture.engagements:
        if item.reason:
            asked = f" (asked: {item.requested})" if item.requested not in ("", "auto", item.engaged) else ""
            console.print(f"[dim]{escape(f'{item.knob}: {item.engaged}{asked}: {item.reason}')}[/]")
    engine_s = picture.output.engine_time.ToNanoseconds() / 1e9
    took = f", {format_seconds(engine_s)} in the engine" if engine_s else ""
    console.print(f"[dim]{picture.width}×{picture.height} {picture.format}, seed[/] {picture.seed}[dim]{took}[/]")


def choose_size(size: str | None, width: int | None, height: int | None) -> tuple[int | None, int | None]:
    if size is None:
        return width, height
    if width is not None or height is not None:
        raise typer.BadParameter("give --size or --width and --height, not both", param_hint="--size")
    parts = size.lower().replace("×", "x").split("x")
    if not all(part.isascii() and part.isdigit() for part in parts) or len(parts) > 2:
        raise typer.BadParameter(f"{size!r} is no size; write 128x128", param_hint="--size")
    return int(parts[0]), int(parts[-1])


def _known_format(format: str | None) -> str | None:
    if format is None:
        return None
    name = {"jpg": "jpeg"}.get(format.lower(), format.lower())
    if name not in ("png", "jpeg", "webp"):
        raise typer.BadParameter(f"{format!r} is none of png, jpeg, webp", param_hint="--format")
    return name


def _preferences(scheme: str | None, source: str | None) -> plan_pb2.PlanPreferences | None:
    from darkroom.cli.plan import read_preferences
    from darkroom.v1 import checkpoint_pb2

    if scheme is None and source is None:
        return None
    wishes = read_preferences(scheme, None, None)
    if source is not None:
        if source != "random":
            raise typer.BadParameter(f"{source!r} is none of random", param_hint="--source")
        wishes.source.kind = checkpoint_pb2.CHECKPOINT_KIND_RANDOM
    return wishes


def _known_priority(priority: str | None) -> str | None:
    if priority is not None and priority not in ("low", "normal", "high"):
        raise typer.BadParameter(f"{priority!r} is none of low, normal, high", param_hint="--priority")
    return priority


def _tell_cancelled(console: Console, jobs: Sequence[job_pb2.Job]) -> None:
    if jobs:
        names = ", ".join(job.id for job in jobs)
        console.print(f"cancelled {names}", highlight=False, soft_wrap=True)


async def _settle(tasks: Sequence[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
