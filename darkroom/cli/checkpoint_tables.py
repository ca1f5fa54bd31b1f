"""How checkpoints look on a terminal: a line each, and all that is known of one.

Knows nothing of builders. Invariant: what a manifest says is escaped.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import RenderableType

    from darkroom.v1 import build_pb2, checkpoint_pb2

STATES = {1: "[green]passed[/]", 2: "[red]failed its gates[/]", 3: "[yellow]not gated[/]"}
ID_CHARACTERS = 12


def checkpoint_table(found: Sequence[checkpoint_pb2.Checkpoint]) -> RenderableType:
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    from darkroom.cli.text import format_bytes

    if not found:
        return "[dim]The store has no checkpoints; `darkroom build MODEL --scheme fp8` makes one.[/]"
    table = Table(box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False)
    for heading in ("checkpoint", "id", "of", "size", "of dense", "layers", "gates"):
        table.add_column(heading, justify="right" if heading in ("size", "of dense", "layers") else "left")
    for item in found:
        table.add_row(
            f"[cyan]{escape(item.name)}[/]",
            item.id[:ID_CHARACTERS],
            escape(f"{item.base} {item.component}"),
            format_bytes(item.size_bytes),
            share(item),
            str(item.num_quantised),
            STATES.get(item.state, "?"),
        )
    return table


def share(item: checkpoint_pb2.Checkpoint) -> str:
    """Returns how much of the dense component's bytes a checkpoint has: "51 %"."""
    return f"{100 * item.size_bytes / item.dense_bytes:.0f} %" if item.dense_bytes else ""


def checkpoint_card(item: checkpoint_pb2.Checkpoint) -> RenderableType:
    from rich.console import Group
    from rich.markup import escape
    from rich.table import Table

    from darkroom.cli.text import format_bytes, name_of
    from darkroom.v1 import device_pb2

    versions = item.versions
    facts = {
        "checkpoint": f"[bold cyan]{escape(item.name)}[/]",
        "id": item.id,
        "of": escape(f"{item.component} of {item.base} ({item.family})"),
        "scheme": name_of(device_pb2.Scheme, item.scheme, "SCHEME_"),
        "size": f"{format_bytes(item.size_bytes)}, {share(item)} of {format_bytes(item.dense_bytes)} dense",
        "tensors": f"{item.num_tensors}, of them {item.num_quantised} in the scheme",
        "licence": escape(item.license),
        "source": f"sha256 {item.source_sha256}",
        "made with": f"torch {versions.torch}, torchao {versions.torchao}, diffusers {versions.diffusers}, "
        f"transformers {versions.transformers}",
        "files": "\n".join(escape(f"{file.name}  {format_bytes(file.size_bytes)}") for file in item.files),
        "gates": STATES.get(item.state, "?"),
    }
    table = Table.grid(padding=(0, 2))
    for label, value in facts.items():
        if value:
            table.add_row(f"[dim]{label}[/]", value)
    return Group(table, gates_table(item.gates)) if item.HasField("gates") else table


def gates_table(report: checkpoint_pb2.GateReport) -> RenderableType:
    from rich import box
    from rich.console import Group
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False)
    for heading in ("gate", "", "measured", "wanted"):
        table.add_column(heading)
    for check in report.checks:
        mark = "[green]✓[/]" if check.has_passed else "[red]✗[/]"
        table.add_row(escape(check.name), mark, escape(check.measured), escape(check.wanted))
    notes = [f"[dim]not run: {escape(note)}[/]" for note in report.not_run]
    return Group(table, *notes)


def build_report(build: build_pb2.Build, sheet: Path | None) -> RenderableType:
    """Returns what a build came to: its checkpoints, their gates, and what it held at most."""
    from rich.console import Group
    from rich.markup import escape

    from darkroom.cli.text import format_bytes

    parts: list[RenderableType] = [checkpoint_table(build.checkpoints)]
    parts += [gates_table(item.gates) for item in build.checkpoints if item.HasField("gates")]
    peak = build.peak
    if peak.host_bytes:
        own = max(0, peak.host_bytes - peak.host_bytes_before)
        text = f"held at most {format_bytes(own)} of host memory beside the libraries' {_before(build)}"
        if peak.device_bytes:
            text += f", and {format_bytes(peak.device_bytes)} of {build.device}"
        parts.append(f"[dim]{text}[/]")
    if sheet is not None and sheet.exists():
        parts.append(f"[dim]contact sheet: {escape(str(sheet))}[/]")
    return Group(*parts)


def _before(build: build_pb2.Build) -> str:
    from darkroom.cli.text import format_bytes

    return format_bytes(build.peak.host_bytes_before)
