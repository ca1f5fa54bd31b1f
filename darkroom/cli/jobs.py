"""`darkroom jobs`: list, show, watch, save, cancel; list the dead and re-drive them.

Knows nothing of how jobs are run. Invariant: only `cancel` and `redrive` change anything.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from darkroom.cli.session import DEFAULT, Address, AsJson

if TYPE_CHECKING:
    from rich.console import RenderableType

    from darkroom.client import AsyncClient
    from darkroom.v1 import job_pb2

STATES = ("queued", "running", "succeeded", "failed", "cancelled")
JobId = Annotated[str, typer.Argument(metavar="JOB", help="The job's id.", show_default=False)]

app = typer.Typer(
    help="List, show, watch and cancel jobs; find dead ones and try them again.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    epilog="""[bold]Examples[/]

  darkroom jobs list --state running

  darkroom jobs watch JOB

  darkroom jobs save JOB --output apple.png

  darkroom jobs dead""",
)


@app.command("list")
def list_jobs(
    state: Annotated[
        list[str] | None, typer.Option("--state", help=f"Only these: {', '.join(STATES)}.", show_default=False)
    ] = None,
    limit: Annotated[int, typer.Option("--limit", "-l", min=1, max=10_000, help="At most this many.")] = 20,
    as_json: AsJson = False,
    address: Address = DEFAULT,
) -> None:
    """List jobs, newest first.

    [bold]Examples[/]

      darkroom jobs list

      darkroom jobs list --state failed --state cancelled --limit 100
    """
    from darkroom.cli.session import output_console, with_client
    from darkroom.cli.text import to_json
    from darkroom.v1 import job_pb2

    for name in state or ():
        if name not in STATES:
            raise typer.BadParameter(f"{name!r} is none of {', '.join(STATES)}", param_hint="--state")
    states = [job_pb2.JobState.Value(f"JOB_STATE_{name.upper()}") for name in state or ()]
    found = with_client(address, lambda client: client.list_jobs(states=states, limit=limit))
    if as_json:
        typer.echo(to_json(found))
    elif found:
        output_console().print(_table(found))
    else:
        from rich.console import Console

        Console(stderr=True).print('[dim]no jobs; make one: darkroom generate "a red apple"[/]')


@app.command("show")
def show_job(job_id: JobId, as_json: AsJson = False, address: Address = DEFAULT) -> None:
    """Show all that is known of a job.

    [bold]Example[/]

      darkroom jobs show JOB --json
    """
    from darkroom.cli.session import output_console, with_client
    from darkroom.cli.text import to_json

    job = with_client(address, lambda client: client.get(job_id))
    if as_json:
        typer.echo(to_json(job))
    else:
        output_console().print(_card(job))


@app.command("watch")
def watch_job(
    job_id: JobId,
    after: Annotated[int, typer.Option("--after", min=0, help="Only events after this sequence number.")] = 0,
    as_json: AsJson = False,
    address: Address = DEFAULT,
) -> None:
    """Watch a job to its end. Ctrl-C stops watching, not the job. With --json: one line an event.

    [bold]Examples[/]

      darkroom jobs watch JOB

      darkroom jobs watch JOB --json | jq .progress.fraction
    """
    from darkroom.cli.session import with_client

    job = with_client(address, lambda client: _watch(client, job_id, after, as_json))
    _report_end(job, as_json)


@app.command("save")
def save_job(
    job_id: JobId,
    output: Annotated[
        str | None, typer.Option("--output", "-o", help="File or folder; - for standard output.", show_default=False)
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a file that exists.")] = False,
    address: Address = DEFAULT,
) -> None:
    """Save the picture of a job that has succeeded.

    [bold]Example[/]

      darkroom jobs save JOB --output apple.png
    """
    import sys

    from rich.console import Console

    from darkroom.cli.destination import Destination
    from darkroom.cli.generate import report_picture
    from darkroom.cli.session import with_client

    if output is not None:
        Destination(output, "", 1, overwrite).prepare()
    picture = with_client(address, lambda client: client.download(job_id))
    destination = Destination(output, picture.job.request.prompt, 1, overwrite)
    if destination.is_stdout:
        sys.stdout.buffer.write(picture.data)
        return
    path = destination.save(picture)
    report_picture(Console(soft_wrap=True), picture, str(path), is_shown=True)


@app.command("cancel")
def cancel_jobs(
    job_ids: Annotated[list[str], typer.Argument(metavar="JOB…", help="One or more ids.", show_default=False)],
    address: Address = DEFAULT,
) -> None:
    """Cancel jobs. A running one stops at its next step.

    [bold]Examples[/]

      darkroom jobs cancel JOB

      darkroom jobs list --state queued --json | jq -r '.[].id' | xargs darkroom jobs cancel
    """
    from darkroom.cli.session import output_console, with_client
    from darkroom.cli.text import state_of, styled_state

    async def cancel(client: AsyncClient) -> None:
        for job_id in job_ids:
            job = await client.cancel(job_id)
            state = state_of(job)
            shown = "[yellow]stopping[/]" if state == "running" else styled_state(state)
            output_console().print(f"{job.id} {shown}")

    with_client(address, cancel)


@app.command("dead")
def list_dead(
    limit: Annotated[int, typer.Option("--limit", "-l", min=1, max=10_000, help="At most this many.")] = 20,
    as_json: AsJson = False,
    address: Address = DEFAULT,
) -> None:
    """List dead jobs, newest first: given up because engines died or workers were lost too often, with the evidence.

    [bold]Examples[/]

      darkroom jobs dead

      darkroom jobs dead --json | jq '.[0].failed_attempts'
    """
    from darkroom.cli.session import output_console, with_client
    from darkroom.cli.text import to_json

    found = with_client(address, lambda client: client.list_dead(limit=limit))
    if as_json:
        typer.echo(to_json(found))
    elif found:
        output_console().print(_dead_table(found))
    else:
        from rich.console import Console

        Console(stderr=True).print("[dim]no dead jobs[/]")


@app.command("redrive")
def redrive_jobs(
    job_ids: Annotated[list[str], typer.Argument(metavar="JOB…", help="One or more ids.", show_default=False)],
    address: Address = DEFAULT,
) -> None:
    """Try dead jobs once more, each as a new job with the same request and seed. Prints the new ids.

    [bold]Examples[/]

      darkroom jobs redrive JOB

      darkroom jobs dead --json | jq -r '.[].id' | xargs darkroom jobs redrive
    """
    from darkroom.cli.session import with_client

    async def redrive(client: AsyncClient) -> None:
        for job_id in job_ids:
            typer.echo((await client.redrive(job_id)).id)

    with_client(address, redrive)


async def _watch(client: AsyncClient, job_id: str, after: int, as_json: bool) -> job_pb2.Job:
    import json

    from google.protobuf import json_format
    from rich.console import Console

    from darkroom.cli.progress import JobsDisplay

    with JobsDisplay(Console(stderr=True, quiet=as_json), 1) as display:
        async for event in client.watch(job_id, after_sequence=after):
            if event.HasField("job"):
                job = event.job
            if as_json:
                line = json_format.MessageToDict(event, preserving_proto_field_name=True)
                print(json.dumps(line), flush=True)
            else:
                display.show(job, event)
    return job


def _report_end(job: job_pb2.Job, as_json: bool) -> None:
    """Says how the job ended; a job that failed is exit status 1, as everywhere."""
    from darkroom.client import errors
    from darkroom.v1 import job_pb2

    if job.state != job_pb2.JOB_STATE_SUCCEEDED:
        raise errors.error_from_message(job.error)
    if not as_json:
        typer.echo(f"{job.id} succeeded; save it: darkroom jobs save {job.id}")


def _table(found: object) -> RenderableType:
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    from darkroom.cli.text import format_age, shorten, state_of, styled_state

    table = Table(box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False)
    for heading in ("job", "state", "model", "seed", "when", "prompt"):
        table.add_column(heading, no_wrap=heading != "prompt")
    for job in found:  # type: ignore[attr-defined]
        table.add_row(
            job.id,
            styled_state(state_of(job)),
            job.request.model,
            str(job.request.seed),
            format_age(job.created_at),
            escape(shorten(job.request.prompt, 60)),
        )
    return table


def _dead_table(found: Sequence[job_pb2.Job]) -> RenderableType:
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    from darkroom.cli.text import format_age, shorten

    table = Table(box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False)
    for heading in ("job", "reason", "attempts", "when", "evidence", "prompt"):
        table.add_column(heading, no_wrap=heading not in ("evidence", "prompt"))
    for job in found:
        table.add_row(
            job.id,
            job.error.reason,
            str(job.attempts),
            format_age(job.finished_at),
            escape("\n".join(map(_evidence, job.failed_attempts))),
            escape(shorten(job.request.prompt, 40)),
        )
    return table


def _priority(job: job_pb2.Job) -> str:
    from darkroom.v1 import job_pb2

    priority = job.terms.priority
    return job_pb2.JobPriority.Name(priority).removeprefix("JOB_PRIORITY_").lower() if priority else ""


def _relatives(job: job_pb2.Job) -> str:
    return f"of {job.redriven_from}" if job.redriven_from else f"as {job.redriven_as}" if job.redriven_as else ""


def _evidence(attempt: job_pb2.FailedAttempt) -> str:
    """One line: "attempt 1 on gpu-0: ENGINE_DIED, signal 9"."""
    facts = attempt.error.metadata
    how = [f"{name.replace('_', ' ')} {facts[name]}" for name in ("signal", "exit_code") if name in facts]
    return ", ".join([f"attempt {attempt.attempt} on {attempt.worker_id}: {attempt.error.reason}", *how])


def _card(job: job_pb2.Job) -> RenderableType:
    from rich.markup import escape
    from rich.table import Table

    from darkroom.cli.text import format_bytes, format_time, phase_of, state_of, styled_state

    request, output = job.request, job.output
    facts = {
        "job": job.id,
        "state": styled_state(state_of(job)),
        "prompt": escape(request.prompt),
        "negative": escape(request.negative_prompt),
        "model": request.model,
        "size": f"{request.width}×{request.height}",
        "steps": f"{request.steps}, guidance {request.guidance:g}",
        "seed": str(request.seed),
        "phase": phase_of(job.progress) if state_of(job) == "running" else "",
        "worker": escape(job.worker_id),
        "attempts": str(job.attempts) if job.attempts > 1 else "",
        "created": format_time(job.created_at),
        "started": format_time(job.started_at),
        "finished": format_time(job.finished_at),
        "deadline": format_time(job.deadline_at),
        "priority": _priority(job),
        "tenant": job.tenant if job.tenant not in ("", "default") else "",
        "output": f"{output.content_type}, {format_bytes(output.size_bytes)}" if job.HasField("output") else "",
        "sha256": output.sha256,
        "re-drive": escape(_relatives(job)),
        "error": f"[red]{escape(job.error.message)}[/] [dim]{job.error.reason}[/]" if job.HasField("error") else "",
    }
    table = Table.grid(padding=(0, 2))
    for label, value in facts.items():
        if value:
            table.add_row(f"[dim]{label}[/]", value)
    for attempt in job.failed_attempts:
        line = f"{_evidence(attempt)}, {format_time(attempt.happened_at)}: {attempt.error.message}"
        table.add_row("[dim]failed[/]", escape(line))
    for item in output.engagements:
        table.add_row(f"[dim]{escape(item.knob)}[/]", escape(f"{item.engaged}  {item.reason}".strip()))
    return table
