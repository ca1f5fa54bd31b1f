"""`darkroom models`: the catalogue.

Knows nothing of what is loaded where: that is `darkroom status`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from darkroom.cli.session import DEFAULT, Address, AsJson

if TYPE_CHECKING:
    from rich.console import RenderableType

    from darkroom.knowledge.local_models import LocalModel
    from darkroom.v1 import model_pb2


def models(
    name: Annotated[
        str | None, typer.Argument(help="One model, with all that is known.", metavar="[MODEL]", show_default=False)
    ] = None,
    here: Annotated[
        bool, typer.Option("--here", help="What lies on this machine: the Hub's cache and the bundled models.")
    ] = False,
    folder: Annotated[
        list[Path] | None, typer.Option("--folder", help="One more place to look in, with --here.", show_default=False)
    ] = None,
    as_json: AsJson = False,
    address: Address = DEFAULT,
) -> None:
    """List the models, or show one.

    [bold]Examples[/]

      darkroom models

      darkroom models emoji

      darkroom models --json | jq '.[].name'

      darkroom models --here --folder /srv/models
    """
    from darkroom.cli.session import output_console, with_client
    from darkroom.cli.text import to_json

    if here:
        found_here = _look_here(folder or [])
        if as_json:
            typer.echo(json.dumps([_as_record(model) for model in found_here], indent=2))
        else:
            output_console().print(_local_table(found_here))
        return
    if name is not None:
        model = with_client(address, lambda client: client.get_model(name))
        if as_json:
            typer.echo(to_json(model))
        else:
            output_console().print(_card(model))
        return
    found = with_client(address, lambda client: client.list_models())
    if as_json:
        typer.echo(to_json(found))
    else:
        output_console().print(_table(found))


def _look_here(folders: Sequence[Path]) -> list[LocalModel]:
    from darkroom.knowledge import load_catalogue
    from darkroom.knowledge.local_models import hub_cache_folder, scan

    bundled = Path(__file__).parents[2] / "models"
    return scan(load_catalogue(), [bundled, *folders], hub_cache_folder(os.environ))


def _as_record(model: LocalModel) -> dict[str, object]:
    return {
        "model": model.model,
        "path": str(model.path),
        "repo_id": model.repo_id,
        "size_bytes": model.size_bytes,
        "is_complete": model.is_complete,
        "missing": list(model.missing),
        "reason": model.reason,
    }


def _local_table(found: Sequence[LocalModel]) -> RenderableType:
    from rich import box
    from rich.table import Table

    from darkroom.cli.text import format_bytes

    table = Table(box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False)
    for heading in ("model", "size", "whole", "where", "why"):
        table.add_column(heading, justify="right" if heading == "size" else "left")
    for model in found:
        whole = "[green]yes[/]" if model.is_complete else "[yellow]partial[/]: " + "; ".join(model.missing)
        name = f"[cyan]{model.model}[/]" if model.model else "[dim]unknown[/]"
        table.add_row(name, format_bytes(model.size_bytes), whole, model.repo_id or str(model.path), model.reason)
    return table


def _table(found: Sequence[model_pb2.Model]) -> RenderableType:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False)
    for heading in ("model", "makes", "size", "steps", "licence", "what it is"):
        table.add_column(heading, no_wrap=heading == "model")
    for model in found:
        defaults = model.defaults
        table.add_row(
            f"[cyan]{model.name}[/]" + (" [yellow]gated[/]" if model.is_gated else ""),
            _media(model),
            f"{defaults.width}×{defaults.height}",
            str(defaults.steps),
            model.license.removeprefix("LicenseRef-"),
            model.summary,
        )
    return table


def _card(model: model_pb2.Model) -> RenderableType:
    from rich.table import Table

    defaults, limits = model.defaults, model.limits
    facts = {
        "model": f"[bold cyan]{model.name}[/]",
        "also called": ", ".join(model.aliases),
        "what it is": model.summary,
        "family": model.family,
        "makes": _media(model),
        "size": f"{defaults.width}×{defaults.height}; sides {limits.min_side} to {limits.max_side} pixels, "
        f"multiples of {limits.side_multiple}",
        "steps": f"{defaults.steps}; at most {limits.max_steps}",
        "guidance": f"{defaults.guidance:g}; at most {limits.max_guidance:g}",
        "negative": "steers away from a negative prompt" if limits.uses_negative_prompt else "is not used",
        "prompt": f"reads {limits.max_prompt_tokens} tokens",
        "pictures": _pictures(limits),
        "weights": model.source + (" (gated: needs an accepted licence and a token)" if model.is_gated else ""),
        "licence": model.license,
        "see also": f"[dim]darkroom plan {model.name}[/]",
    }
    table = Table.grid(padding=(0, 2))
    for label, value in facts.items():
        if value:
            table.add_row(f"[dim]{label}[/]", value)
    return table


def _pictures(limits: model_pb2.GenerationLimits) -> str:
    """Returns how many pictures a request may bring; nothing for models of words alone."""
    from darkroom.v1 import model_pb2

    most = limits.max_reference_images
    if not most:
        return ""
    return f"{'1' if limits.image_input == model_pb2.IMAGE_INPUT_REQUIRED else '0'} to {most} that a request brings"


def _media(model: model_pb2.Model) -> str:
    from darkroom.cli.text import name_of
    from darkroom.v1 import model_pb2

    media = name_of(model_pb2.MediaKind, model.media, "MEDIA_KIND_")
    return {"image": "pictures", "video": "video"}.get(media, media)
