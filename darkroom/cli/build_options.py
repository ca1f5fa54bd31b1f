"""The options of `darkroom build`, with the words that its help has for them.

Knows nothing of what they do.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Model = Annotated[str, typer.Argument(metavar="MODEL", help="Name or alias.", show_default=False)]
SchemeWord = Annotated[str, typer.Option("--scheme", help="fp8, int8, mxfp8, nvfp4 or fp8_storage.")]
Component = Annotated[
    str | None,
    typer.Option("--component", help="An attribute of the pipeline.", show_default="the denoiser, or both experts"),
]
Expert = Annotated[int, typer.Option("--expert", min=0, max=2, help="One of two experts.", show_default="both")]
Source = Annotated[
    str | None,
    typer.Option(
        "--source",
        metavar="PATH",
        help="Where the dense weights are: a folder, or one safetensors file.",
        show_default="where the catalogue says",
    ),
]
Base = Annotated[
    str | None,
    typer.Option(
        "--base",
        metavar="NAME",
        help="What --source is: the model's repository for a copy, else a name of its own.",
        show_default=False,
    ),
]
Device = Annotated[
    str | None, typer.Option("--device", help="cpu or cuda:0, for a builder started here.", show_default="auto")
]
Float32 = Annotated[bool, typer.Option("--float32", help="For devices that compute in float32.")]
NoGates = Annotated[bool, typer.Option("--no-gates", help="Build only; it is not listed.")]
Pairs = Annotated[
    int, typer.Option("--pairs", min=0, max=64, help="Pictures to compare.", show_default="the catalogue's")
]
Sheet = Annotated[
    Path | None,
    typer.Option("--sheet", metavar="FILE", help="Save the contact sheet of the gates here.", show_default=False),
]
