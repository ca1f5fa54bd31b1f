"""`darkroom plan`: how a model would run on a device, with every term of the arithmetic, or why it would not.

Knows nothing of how plans are made. Invariant: what is printed is what the planner said.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from darkroom.cli.session import DEFAULT, Address, AsJson

if TYPE_CHECKING:
    from darkroom.client import AsyncClient
    from darkroom.v1 import model_service_pb2, plan_pb2


def plan(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="Name or alias.", show_default=False)],
    device: Annotated[
        str | None,
        typer.Option(
            "--device",
            help="A device that need not be here: rtx-3090, h200; a file with one: gpu.json; or all.",
            show_default="a free worker's",
        ),
    ] = None,
    taken: Annotated[
        float, typer.Option("--taken", min=0, metavar="GB", help="Of that device's memory, by others.")
    ] = 0.0,
    worker: Annotated[str | None, typer.Option("--worker", help="A worker's id.", show_default=False)] = None,
    scheme: Annotated[
        str | None,
        typer.Option(help="Of the denoiser: none, fp8, int8, fp8_storage, …", show_default="planner's choice"),
    ] = None,
    memory: Annotated[str | None, typer.Option(help="auto, fast, balanced or low_vram.", show_default="auto")] = None,
    speed: Annotated[str | None, typer.Option(help="off, default or max.", show_default="the model's")] = None,
    size: Annotated[str | None, typer.Option("--size", metavar="WxH", show_default="the model's")] = None,
    as_json: AsJson = False,
    address: Address = DEFAULT,
) -> None:
    """Show how a model would run: scheme, memory tier, bytes, and why.

    [bold]Examples[/]

      darkroom plan emoji

      darkroom plan flux.1-dev --device rtx-3090 --taken 5

      darkroom plan flux.1-dev --device h200 --scheme int8 --json

      darkroom plan qwen-image --device all

      darkroom status --json | jq '.workers[0].status.device' > gpu.json; darkroom plan ltx-2 --device gpu.json
    """
    from darkroom.cli.described_devices import describe_devices
    from darkroom.cli.failures import EXIT_USAGE, UserError
    from darkroom.cli.plan_comparison import comparison
    from darkroom.cli.plan_tables import plan_report, refusal_report
    from darkroom.cli.session import output_console, with_client
    from darkroom.cli.text import to_json
    from darkroom.v1 import model_service_pb2

    if device is not None and worker is not None:
        raise UserError("--device and --worker exclude each other", "Leave one of them out.", EXIT_USAGE)
    requests = [
        model_service_pb2.PlanModelRequest(
            model=model, device=item, preferences=read_preferences(scheme, memory, speed), workload=_workload(size)
        )
        for item in (describe_devices(device, taken) if device is not None else [None])
    ]
    if worker is not None:
        requests[0].worker_id = worker
    responses = with_client(address, lambda client: _ask(client, requests))
    response, fits = responses[0], any(item.HasField("plan") for item in responses)
    if as_json:
        typer.echo(to_json(responses if len(responses) > 1 else response))
    elif len(responses) > 1:
        output_console().print(comparison(model, responses))
    else:
        report = plan_report(response) if fits else refusal_report(model, response)
        output_console().print(report)
    if not fits:
        raise typer.Exit(1)


async def _ask(
    client: AsyncClient, requests: Sequence[model_service_pb2.PlanModelRequest]
) -> list[model_service_pb2.PlanModelResponse]:
    """Asks the gateway; for a described device a planner of our own does as well where no gateway answers."""
    from darkroom.cli.local_planner import plan_without_gateway
    from darkroom.client import errors

    try:
        return [
            await client.plan(
                request.model,
                worker_id=request.worker_id if request.HasField("worker_id") else None,
                device=request.device if request.HasField("device") else None,
                preferences=request.preferences,
                workload=request.workload if request.HasField("workload") else None,
            )
            for request in requests
        ]
    except errors.UnavailableError as silence:
        if not requests[0].HasField("device") or silence.reason != "UNAVAILABLE":
            raise
        return await plan_without_gateway(requests, silence)


def read_preferences(scheme: str | None, memory: str | None, speed: str | None) -> plan_pb2.PlanPreferences:
    """Returns the wishes that these words stand for. Raises BadParameter for a word that stands for none."""
    from darkroom.v1 import device_pb2, plan_pb2

    return plan_pb2.PlanPreferences(
        scheme=_value(device_pb2.Scheme, "SCHEME_", scheme, "--scheme"),
        memory_mode=_value(plan_pb2.MemoryMode, "MEMORY_MODE_", memory, "--memory"),
        speed_mode=_value(plan_pb2.SpeedMode, "SPEED_MODE_", speed, "--speed"),
    )


def _value(enum: Any, prefix: str, name: str | None, option: str) -> Any:
    """Returns the number of an enum's value by its short name; "auto" is unspecified."""
    if name is None or name == "auto":
        return 0
    try:
        return enum.Value(prefix + name.upper().replace("-", "_"))
    except ValueError:
        known = [value.removeprefix(prefix).lower() for value in enum.keys()]  # noqa: SIM118 - no mapping
        choices = ", ".join(["auto", *(value for value in known if value not in ("auto", "unspecified"))])
        raise typer.BadParameter(f"{name!r} is none of {choices}", param_hint=option) from None


def _workload(size: str | None) -> plan_pb2.Workload | None:
    from darkroom.cli.generate import choose_size
    from darkroom.v1 import plan_pb2

    width, height = choose_size(size, None, None)
    if width is None or height is None:
        return None
    return plan_pb2.Workload(width=width, height=height)
