"""How one model would run on many devices, one line a device, to be read at a glance.

Knows nothing of how plans are made. Invariant: a device on which nothing fits has a line too, with what is missing.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import RenderableType
from rich.markup import escape
from rich.table import Table

from darkroom.cli.text import format_bytes, name_of
from darkroom.v1 import device_pb2, model_service_pb2, plan_pb2

# The faster, the greener.
STYLES = {"none": "green", "encoders": "green3", "group": "yellow", "model": "dark_orange", "sequential": "red"}
PLACES = {"none": "resident", "encoders": "encoders leave", "group": "streamed", "model": "by component"}


def comparison(model: str, responses: Sequence[model_service_pb2.PlanModelResponse]) -> RenderableType:
    """Returns a table of every device's plan, in the order given."""
    table = Table(title=f"{escape(model)} on known devices", box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False)
    for heading in ("device", "memory", "denoiser", "text encoders", "weights", "needs", "may use", "step"):
        table.add_column(heading, justify="right" if heading in ("memory", "needs", "may use", "step") else "left")
    for response in responses:
        device = response.device
        row = _plan_row(response.plan) if response.HasField("plan") else _refusal_row(response.no_fit)
        table.add_row(escape(device.id), format_bytes(device.memory.total_bytes), *row)
    table.caption = (
        "step: times the dense model's, resident and uncompiled, on the same device; ? where nobody measured"
    )
    return table


def _plan_row(plan: plan_pb2.Plan) -> tuple[str, ...]:
    tier = name_of(plan_pb2.OffloadTier, plan.offload, "OFFLOAD_TIER_")
    notes = [PLACES.get(tier, "by layer")]
    notes += ["encoders streamed"] if plan.streams_text_encoders else []
    notes += ["tiles"] if plan.vae_tiling else []
    style = STYLES.get(tier, "")
    return (
        _scheme(plan, plan_pb2.COMPONENT_ROLE_DENOISER),
        _scheme(plan, plan_pb2.COMPONENT_ROLE_TEXT_ENCODER),
        f"[{style}]{', '.join(notes)}[/]",
        format_bytes(plan.memory.required_bytes),
        format_bytes(plan.memory.limit_bytes),
        f"{plan.step.ratio:.2g}" if plan.step.ratio else "?",
    )


def _refusal_row(no_fit: plan_pb2.NoFit) -> tuple[str, ...]:
    counted = [candidate for candidate in no_fit.candidates if candidate.HasField("memory")]
    least = min(counted, key=lambda candidate: candidate.memory.required_bytes, default=None)
    if least is None:
        return ("", "", "[red]does not fit[/]", "", "", "")
    needs, may = format_bytes(least.memory.required_bytes), format_bytes(least.memory.limit_bytes)
    return ("", "", "[red]does not fit[/]", f"[red]{needs}[/]", may, "")


def _scheme(plan: plan_pb2.Plan, role: plan_pb2.ComponentRole.ValueType) -> str:
    """Returns the scheme of the largest component of a role."""
    parts = [part for part in plan.components if part.role == role]
    largest = max(parts, key=lambda part: part.weight_bytes, default=None)
    if largest is None:
        return ""
    word = name_of(device_pb2.Scheme, largest.scheme, "SCHEME_")
    return "dense" if word == "none" else word
