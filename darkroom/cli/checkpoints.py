"""`darkroom checkpoints`: what a builder's store has, and what can be done with it.

Knows nothing of how checkpoints are made. Invariant: what is shown is what the builder said.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from darkroom.cli.builder import CALL_S, Builder, Store, with_builder
from darkroom.cli.session import AsJson

if TYPE_CHECKING:
    from darkroom.v1 import checkpoint_builder_service_pb2 as messages
    from darkroom.v1 import checkpoint_pb2
    from darkroom.v1.checkpoint_builder_service_pb2_grpc import CheckpointBuilderServiceAsyncStub

app = typer.Typer(
    name="checkpoints",
    help="Checkpoints of the store: list, show, validate, publish, collect.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)
Checkpoint = Annotated[str, typer.Argument(metavar="CHECKPOINT", help="Name or id.", show_default=False)]


@app.command("list")
def list_checkpoints(
    every: Annotated[bool, typer.Option("--all", help="Also those that have not passed their gates.")] = False,
    store: Store = None,
    as_json: AsJson = False,
    builder: Builder = "",
) -> None:
    """List the checkpoints of the store.

    [bold]Examples[/]

      darkroom checkpoints list

      darkroom checkpoints list --all --store s3://bucket/checkpoints
    """
    from darkroom.cli.checkpoint_tables import checkpoint_table
    from darkroom.cli.session import output_console
    from darkroom.cli.text import to_json

    found = with_builder(builder, lambda stub: _all(stub, every), store)
    if as_json:
        typer.echo(to_json(found))
    else:
        output_console().print(checkpoint_table(found))


@app.command("show")
def show(
    checkpoint: Checkpoint,
    manifest: Annotated[bool, typer.Option("--manifest", help="Print the manifest, JSON, and nothing else.")] = False,
    sheet: Annotated[
        Path | None,
        typer.Option("--sheet", metavar="FILE", help="Save the contact sheet of its gates here.", show_default=False),
    ] = None,
    store: Store = None,
    as_json: AsJson = False,
    builder: Builder = "",
) -> None:
    """Show one checkpoint with its gates.

    [bold]Examples[/]

      darkroom checkpoints show FLUX.1-dev-FP8 --sheet flux.png

      darkroom checkpoints show FLUX.1-dev-FP8 --manifest | jq .recipe
    """
    from darkroom.cli.build import save_sheet
    from darkroom.cli.checkpoint_tables import checkpoint_card
    from darkroom.cli.session import output_console
    from darkroom.cli.text import to_json
    from darkroom.v1 import checkpoint_builder_service_pb2 as messages

    async def errand(stub: CheckpointBuilderServiceAsyncStub) -> messages.GetCheckpointResponse:
        request = messages.GetCheckpointRequest(checkpoint_id=checkpoint)
        found: messages.GetCheckpointResponse = await stub.GetCheckpoint(request, timeout=CALL_S)
        if sheet is not None:
            await save_sheet(stub, found.checkpoint, sheet)
        return found

    found = with_builder(builder, errand, store)
    if manifest:
        typer.echo(found.manifest, nl=False)
    elif as_json:
        typer.echo(to_json(found.checkpoint))
    else:
        output_console().print(checkpoint_card(found.checkpoint))


@app.command("validate")
def validate(checkpoint: Checkpoint, store: Store = None, builder: Builder = "") -> None:
    """Read every byte of a checkpoint again and compare it with its manifest.

    [bold]Examples[/]

      darkroom checkpoints validate FLUX.1-dev-FP8
    """
    from darkroom.cli.session import output_console
    from darkroom.cli.text import format_bytes
    from darkroom.v1 import checkpoint_builder_service_pb2 as messages

    async def errand(stub: CheckpointBuilderServiceAsyncStub) -> checkpoint_pb2.Checkpoint:
        from darkroom.cli.build_progress import BuildDisplay
        from darkroom.v1 import build_pb2, checkpoint_pb2

        whole = checkpoint_pb2.Checkpoint()
        with BuildDisplay() as display:
            async for answer in stub.ValidateCheckpoint(messages.ValidateCheckpointRequest(checkpoint_id=checkpoint)):
                if answer.HasField("progress"):
                    display.show(build_pb2.Build(progress=answer.progress))
                else:
                    whole = answer.checkpoint
        return whole

    whole = with_builder(builder, errand, store)
    amount = f"{format_bytes(whole.size_bytes)} in {len(whole.files)} files"
    output_console().print(f"[green]✓[/] {whole.name}: {amount}, as the manifest says")


@app.command("publish")
def publish(
    checkpoint: Checkpoint,
    repo: Annotated[str, typer.Argument(metavar="OWNER/NAME", help="The Hub repository.", show_default=False)],
    public: Annotated[bool, typer.Option("--public", help="Make a new repository public.")] = False,
    replace: Annotated[bool, typer.Option("--replace", help="Replace files of other content.")] = False,
    store: Store = None,
    as_json: AsJson = False,
    builder: Builder = "",
) -> None:
    """Upload a checkpoint to the Hub, with a card written from its manifest; goes on where an upload was cut off.

    [bold]Examples[/]

      HF_TOKEN=… darkroom checkpoints publish FLUX.1-dev-FP8 me/FLUX.1-dev-FP8

      darkroom checkpoints publish emoji-INT8 me/emoji-quantised --public
    """
    from darkroom.cli.session import output_console
    from darkroom.cli.text import to_json
    from darkroom.v1 import checkpoint_builder_service_pb2 as messages

    request = messages.PublishCheckpointRequest(
        checkpoint_id=checkpoint, repo_id=repo, is_public=public, replaces=replace
    )

    async def errand(stub: CheckpointBuilderServiceAsyncStub) -> messages.PublishedCheckpoint:
        from darkroom.cli.build_progress import BuildDisplay
        from darkroom.v1 import build_pb2

        published = messages.PublishedCheckpoint()
        with BuildDisplay() as display:
            async for answer in stub.PublishCheckpoint(request):
                if answer.HasField("progress"):
                    display.show(build_pb2.Build(progress=answer.progress))
                else:
                    published = answer.published
        return published

    done = with_builder(builder, errand, store)
    if as_json:
        typer.echo(to_json(done))
        return
    amount = f"{len(done.uploaded)} files sent, {len(done.unchanged)} were there already"
    output_console().print(f"[green]✓[/] {done.repo_id} at {done.revision[:12]}: {amount}")


@app.command("collect")
def collect(store: Store = None, builder: Builder = "") -> None:
    """Delete what no checkpoint refers to, and what has not passed its gates, once it is a day old.

    [bold]Examples[/]

      darkroom checkpoints collect
    """
    from darkroom.cli.session import output_console
    from darkroom.cli.text import format_bytes
    from darkroom.v1 import checkpoint_builder_service_pb2 as messages

    async def errand(stub: CheckpointBuilderServiceAsyncStub) -> messages.CollectCheckpointsResponse:
        request = messages.CollectCheckpointsRequest()
        gone: messages.CollectCheckpointsResponse = await stub.CollectCheckpoints(request, timeout=CALL_S)
        return gone

    gone = with_builder(builder, errand, store)
    output_console().print(
        f"deleted {gone.num_manifests} checkpoints that had not passed and {gone.num_blobs} files: "
        f"{format_bytes(gone.freed_bytes)} freed"
    )


async def _all(stub: CheckpointBuilderServiceAsyncStub, every: bool) -> list[checkpoint_pb2.Checkpoint]:
    from darkroom.v1 import checkpoint_builder_service_pb2 as messages

    found: list[checkpoint_pb2.Checkpoint] = []
    token = ""
    while True:
        request = messages.ListCheckpointsRequest(page_token=token, includes_unlisted=every)
        page = await stub.ListCheckpoints(request, timeout=CALL_S)
        found += page.checkpoints
        token = page.next_page_token
        if not token:
            return found
