"""`darkroom build`: a model's component becomes a checkpoint in its scheme.

Knows nothing of how checkpoints are made. Invariants: Ctrl-C cancels the build before the command exits; a checkpoint
whose gates failed is an exit status of 1.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from darkroom.cli.build_options import (
    Base,
    Component,
    Device,
    Expert,
    Float32,
    Model,
    NoGates,
    Pairs,
    SchemeWord,
    Sheet,
    Source,
)
from darkroom.cli.builder import CALL_S, Builder, Store, with_builder
from darkroom.cli.failures import EXIT_FAILED, UserError
from darkroom.cli.session import AsJson

if TYPE_CHECKING:
    from darkroom.v1 import build_pb2, checkpoint_pb2
    from darkroom.v1.checkpoint_builder_service_pb2_grpc import CheckpointBuilderServiceAsyncStub

# A text encoder in "fp8" is stored in it; that it also computes in it has a word of its own.
TEXT_WORDS = {"fp8": "fp8_storage", "fp8_dynamic": "fp8"}


def build(
    model: Model,
    scheme: SchemeWord = "fp8",
    component: Component = None,
    expert: Expert = 0,
    source: Source = None,
    base: Base = None,
    device: Device = None,
    float32: Float32 = False,
    no_gates: NoGates = False,
    pairs: Pairs = 0,
    sheet: Sheet = None,
    store: Store = None,
    as_json: AsJson = False,
    builder: Builder = "",
) -> None:
    """Quantise a model's component beforehand: half the bytes, and no dense weights at any later load.

    [bold]Examples[/]

      darkroom build emoji --scheme int8 --sheet emoji.png

      darkroom build flux.1-dev --scheme fp8 --device cuda:0

      darkroom build flux.1-dev --scheme fp8 --component text_encoder_2

      darkroom build flux.1-dev --scheme int8 --source mine.safetensors --base me/my-flux

      darkroom build wan2.2-t2v-a14b --scheme fp8 --store s3://bucket/checkpoints
    """
    from darkroom.cli.checkpoint_tables import build_report
    from darkroom.cli.session import output_console
    from darkroom.cli.text import to_json

    order = read_order(model, scheme, component, expert, source, float32=float32)
    order.base = base or ""
    order.skips_gates, order.num_pairs = no_gates, pairs
    environment = {"DARKROOM_BUILDER_DEVICE": device} if device is not None else {}
    if source is not None:
        environment["DARKROOM_BUILDER_SOURCE_PATHS"] = str(Path(source).resolve())

    async def errand(stub: CheckpointBuilderServiceAsyncStub) -> build_pb2.Build:
        ended = await _run(stub, order)
        if sheet is not None and any(item.gates.pairs for item in ended.checkpoints):
            await save_sheet(stub, ended.checkpoints[0], sheet)
        return ended

    ended = with_builder(builder, errand, store, environment)
    if as_json:
        typer.echo(to_json(ended))
    else:
        output_console().print(build_report(ended, sheet))
    if any(item.HasField("gates") and not item.gates.has_passed for item in ended.checkpoints):
        raise typer.Exit(EXIT_FAILED)


def read_order(
    model: str, scheme: str, component: str | None, expert: int, source: str | None, *, float32: bool = False
) -> build_pb2.BuildOrder:
    """Returns the order that these words stand for. Raises BadParameter for a word that stands for none."""
    from darkroom.v1 import build_pb2, checkpoint_pb2, device_pb2, plan_pb2

    word = scheme.lower().replace("-", "_")
    if component is not None and component.startswith("text_encoder"):
        word = TEXT_WORDS.get(word, word)
    if f"SCHEME_{word.upper()}" not in device_pb2.Scheme.keys():  # noqa: SIM118 - no mapping
        raise typer.BadParameter(f"{scheme!r} is none of fp8, int8, mxfp8, nvfp4, fp8_storage", param_hint="--scheme")
    order = build_pb2.BuildOrder(
        model=model, scheme=device_pb2.Scheme.Value(f"SCHEME_{word.upper()}"), component=component or "", expert=expert
    )
    if float32:
        order.compute_type = plan_pb2.COMPUTE_TYPE_FLOAT32
    if source is not None:
        is_file = os.path.isfile(source)
        kinds = checkpoint_pb2.CheckpointKind
        order.source.kind = kinds.CHECKPOINT_KIND_SINGLE_FILE if is_file else kinds.CHECKPOINT_KIND_DENSE
        order.source.path = str(Path(source).resolve())
    return order


async def save_sheet(
    stub: CheckpointBuilderServiceAsyncStub, checkpoint: checkpoint_pb2.Checkpoint, path: Path
) -> None:
    """Downloads a contact sheet. Raises OSError."""
    from darkroom.v1 import checkpoint_builder_service_pb2 as messages

    request = messages.DownloadContactSheetRequest(checkpoint_id=checkpoint.id)
    chunks = [answer.chunk async for answer in stub.DownloadContactSheet(request, timeout=CALL_S)]
    path.write_bytes(b"".join(chunks))


async def _run(stub: CheckpointBuilderServiceAsyncStub, order: build_pb2.BuildOrder) -> build_pb2.Build:
    """Builds to the end, with its progress on stderr."""
    import asyncio
    import uuid

    from darkroom.cli.build_progress import BuildDisplay
    from darkroom.rpc.errors import error_from_message
    from darkroom.v1 import build_pb2
    from darkroom.v1 import checkpoint_builder_service_pb2 as messages

    request = messages.BuildRequest(order=order, request_id=str(uuid.uuid4()))
    ended: build_pb2.Build = (await stub.Build(request, timeout=CALL_S)).build
    try:
        with BuildDisplay() as display:
            async for answer in stub.WatchBuild(messages.WatchBuildRequest(build_id=ended.id)):
                ended = answer.build
                display.show(ended)
    except asyncio.CancelledError:
        await stub.CancelBuild(messages.CancelBuildRequest(build_id=ended.id), timeout=CALL_S)
        raise
    if ended.state == build_pb2.BUILD_STATE_CANCELLED:
        raise UserError("the build was cancelled", "Ask again; nothing of it was kept.")
    if ended.HasField("error"):
        raise error_from_message(ended.error)
    return ended
