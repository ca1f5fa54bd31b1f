"""`darkroom jobs`: list, show, watch, save, cancel; list the dead and re-drive them.

Knows nothing of how jobs are run. Invariant: only `cancel` and `redrive` change anything.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from darkroom.cli.job_tables import dead_table, job_card, job_table
from darkroom.cli.session import DEFAULT, Address, AsJson

if TYPE_CHECKING:
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
        output_console().print(job_table(found))
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
        output_console().print(job_card(job))


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
        output_console().print(dead_table(found))
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
