"""The options of `darkroom generate`, with the words that its help has for them.

Knows nothing of what they do.
"""

from __future__ import annotations

from typing import Annotated

import typer

MAX_SEED = 2**64 - 1
MAX_COUNT = 100
THE_MODELS = "the model's"

Prompt = Annotated[str, typer.Argument(metavar="PROMPT", help="What to show.", show_default=False)]
Model = Annotated[str, typer.Option("--model", "-m", metavar="NAME", help="Name or alias; see darkroom models.")]
Size = Annotated[
    str | None,
    typer.Option("--size", "-s", metavar="WxH", help="In pixels: 128x128, or 128 for a square.", show_default=False),
]
Side = Annotated[int | None, typer.Option(metavar="N", help="Pixels; instead of --size.", show_default=False)]
Images = Annotated[
    list[str] | None,
    typer.Option(
        "--image",
        "-i",
        metavar="PATH",
        help="A PNG, JPEG or WebP file that the prompt speaks of; again for more, in order.",
        show_default=False,
    ),
]
Steps = Annotated[int | None, typer.Option(metavar="N", help="Denoising steps.", show_default=THE_MODELS)]
Guidance = Annotated[
    float | None, typer.Option("--guidance", "-g", metavar="X", help="Guidance scale.", show_default=THE_MODELS)
]
Negative = Annotated[
    str | None,
    typer.Option("--negative", "-n", metavar="TEXT", help="What to steer away from.", show_default=THE_MODELS),
]
Scheme = Annotated[
    str | None,
    typer.Option(
        metavar="NAME", help="Weights of the denoiser: none, int8, fp8, fp8_storage.", show_default="planner's choice"
    ),
]
Source = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Weights: random measures a device without a download, and paints noise.",
        show_default="the model's own",
    ),
]
Seed = Annotated[
    int | None,
    typer.Option(metavar="N", min=0, max=MAX_SEED, help="Same seed, same picture.", show_default="drawn"),
]
Count = Annotated[
    int,
    typer.Option(
        "--count", "-c", metavar="N", min=1, max=MAX_COUNT, help="Pictures, with seeds that follow each other."
    ),
]
OutputPath = Annotated[
    str | None,
    typer.Option(
        "--output",
        "-o",
        metavar="PATH",
        help="File or folder; - for standard output.",
        show_default="here, named by the prompt",
    ),
]
Format = Annotated[
    str | None,
    typer.Option(
        "--format", "-f", metavar="NAME", help="png, jpeg or webp.", show_default="by the file's suffix, else png"
    ),
]
Priority = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Among jobs that wait: low, normal or high.", show_default="normal"),
]
Tenant = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        envvar="DARKROOM_TENANT",
        help="On whose behalf: tenants share the workers in turns.",
        show_default="default",
    ),
]
Deadline = Annotated[
    float | None,
    typer.Option(
        metavar="SECONDS",
        min=0.001,
        help="Give up on a picture that is not done by then.",
        show_default="none",
    ),
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace a file that exists.")]
Detach = Annotated[bool, typer.Option("--detach", "-d", help="Submit, print the job's id, and leave.")]
Show = Annotated[bool, typer.Option(help="Show the picture where the terminal can.")]
