"""How a plan is laid out for people: decisions, components, memory arithmetic, reasons, fallbacks.

Knows nothing of how plans are made. Invariant: every term of the sum is on the screen.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from darkroom.cli.text import format_bytes, name_of
from darkroom.v1 import device_pb2, model_service_pb2, plan_pb2

OFFLOADS = {
    "none": "everything stays on the device",
    "encoders": "text encoders leave once the prompt is encoded",
    "group": "denoiser blocks are streamed to the device",
    "model": "one component at a time is on the device",
    "sequential": "one layer at a time is on the device",
}


def plan_report(response: model_service_pb2.PlanModelResponse) -> RenderableType:
    """Returns the whole report of a plan."""
    plan = response.plan
    parts: list[RenderableType] = [
        _headline(f"[bold cyan]{escape(plan.model)}[/] [green]fits[/]", response.device),
        _section("Decisions", _facts(_decisions(plan))),
        _section("Components", _components(plan)),
        _section("Memory", _arithmetic(plan.memory)),
    ]
    if plan.reasons:
        parts.append(_section("Why", _reasons(plan.reasons)))
    if plan.fallbacks:
        parts.append(_section("If that fails", _fallbacks(plan.fallbacks)))
    return Group(*parts)


def refusal_report(model: str, response: model_service_pb2.PlanModelResponse) -> RenderableType:
    """Returns every candidate and why it was not chosen."""
    table = Table(box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False)
    for heading in ("scheme", "offload", "needs", "may use", "why not"):
        table.add_column(heading, justify="right" if heading in ("needs", "may use") else "left")
    for candidate in response.no_fit.candidates:
        has_sum = candidate.HasField("memory")
        table.add_row(
            _scheme(candidate.scheme),
            _offload(candidate.offload),
            format_bytes(candidate.memory.required_bytes) if has_sum else "",
            format_bytes(candidate.memory.limit_bytes) if has_sum else "",
            escape(candidate.reason.sentence),
        )
    head = _headline(f"[bold cyan]{escape(model)}[/] [red]does not fit[/]", response.device)
    return Group(head, _section("Candidates, best first", table))


def _headline(verdict: str, device: device_pb2.Device) -> RenderableType:
    name = f"{device.name} ({device.id})" if device.id and device.name else device.name or device.id or "the device"
    memory = f", {format_bytes(device.memory.total_bytes)}" if device.memory.total_bytes else ""
    assumed = " [yellow](described, not probed)[/]" if device.is_assumed else ""
    return Text.from_markup(f"{verdict} on [bold]{escape(name)}[/]{memory}{assumed}")


def _company(workload: plan_pb2.Workload) -> str:
    """Returns what is made together, and with what."""
    count = workload.reference_images
    brought = f", with {count} picture{'s' * (count > 1)} that the request brings" if count else ""
    return f"{workload.batch_size} at once{brought}"


def _decisions(plan: plan_pb2.Plan) -> dict[str, str]:
    offload = _offload(plan.offload)
    vae = [word for word, is_on in (("tiled", plan.vae_tiling), ("sliced", plan.vae_slicing)) if is_on]
    cache = name_of(plan_pb2.StepCacheKind, plan.step_cache.kind, "STEP_CACHE_KIND_")
    workload = plan.workload
    return {
        "runs as": f"{plan.pipeline_class} on {name_of(plan_pb2.Engine, plan.engine, 'ENGINE_')}",
        "for": f"{workload.width}×{workload.height}, {_company(workload)}" if workload.width else "",
        "weights": _source(plan.source),
        "computes in": name_of(plan_pb2.ComputeType, plan.compute_type, "COMPUTE_TYPE_"),
        "offload": f"{offload}: {OFFLOADS.get(offload, '')}",
        "speed mode": name_of(plan_pb2.SpeedMode, plan.speed_mode, "SPEED_MODE_"),
        "attention": name_of(plan_pb2.AttentionBackend, plan.attention, "ATTENTION_BACKEND_"),
        "step cache": "" if cache in ("off", "unspecified") else cache,
        "decoding": ", ".join(vae),
        "caution": "a scheme rests on capability alone; a worker's probe must agree" if plan.is_assumed else "",
        "note": "some sizes are estimates" if plan.is_estimate else "",
    }


def _components(plan: plan_pb2.Plan) -> RenderableType:
    table = Table(box=None, header_style="dim", padding=(0, 2, 0, 0))
    for heading in ("component", "role", "scheme", "type", "weights"):
        table.add_column(heading, justify="right" if heading == "weights" else "left")
    for component in plan.components:
        table.add_row(
            component.name,
            name_of(plan_pb2.ComponentRole, component.role, "COMPONENT_ROLE_").replace("_", " "),
            _scheme(component.scheme),
            name_of(plan_pb2.ComputeType, component.compute_type, "COMPUTE_TYPE_"),
            format_bytes(component.weight_bytes),
        )
    return table


def _arithmetic(memory: plan_pb2.MemoryBudget) -> RenderableType:
    spare = memory.limit_bytes - memory.required_bytes
    verdict = f"[green]{format_bytes(spare)} to spare[/]" if spare >= 0 else f"[red]{format_bytes(-spare)} too much[/]"
    rows = [
        ("", "device", memory.total_bytes, ""),
        ("−", "held by others", memory.foreign_bytes, ""),
        ("−", "kept free", memory.reserve_bytes, ""),
        ("=", "budget", memory.budget_bytes, ""),
        ("×", f"{memory.fill_limit:g} = may be filled", memory.limit_bytes, ""),
        None,
        ("", "weights", memory.weight_bytes, "at the largest stage" if memory.stages else ""),
        ("+", "activations", memory.activation_bytes, ""),
        ("+", "runtime", memory.overhead_bytes, ""),
        ("=", "[bold]required[/]", memory.required_bytes, verdict),
    ]
    table = Table.grid(padding=(0, 2))
    table.add_column()
    table.add_column()
    table.add_column(justify="right")
    table.add_column()
    for row in rows:
        if row is None:
            table.add_row()
        else:
            sign, label, num_bytes, remark = row
            table.add_row(f"[dim]{sign}[/]", label, format_bytes(num_bytes), remark)
    if memory.host_bytes:
        free = f"of {format_bytes(memory.host_free_bytes)} free" if memory.host_free_bytes else ""
        table.add_row("", "on the host", format_bytes(memory.host_bytes), free)
    return table


def _reasons(reasons: Iterable[plan_pb2.Reason]) -> RenderableType:
    table = Table.grid(padding=(0, 1))
    # Two candidates may be refused for the very same reason; it is said once.
    for sentence, code in dict.fromkeys((reason.sentence, reason.code) for reason in reasons):
        table.add_row("[dim]•[/]", f"{escape(sentence)} [dim]{code}[/]")
    return table


def _fallbacks(fallbacks: Iterable[plan_pb2.Fallback]) -> RenderableType:
    table = Table.grid(padding=(0, 2))
    for fallback in fallbacks:
        plan = fallback.plan
        trigger = name_of(plan_pb2.FallbackTrigger, fallback.trigger, "FALLBACK_TRIGGER_").replace("_", " ")
        schemes = dict.fromkeys(
            _scheme(item.scheme) for item in plan.components if item.role == plan_pb2.COMPONENT_ROLE_DENOISER
        )
        table.add_row(
            f"[dim]{trigger}[/]",
            f"{' + '.join(schemes) or 'none'}, offload {_offload(plan.offload)}, from {_source(plan.source)}",
            f"needs {format_bytes(plan.memory.required_bytes)} of {format_bytes(plan.memory.limit_bytes)}",
        )
    return table


def _section(title: str, content: RenderableType) -> RenderableType:
    return Group("", f"[bold]{title}[/]", Padding(content, (0, 0, 0, 2), expand=False))


def _facts(facts: dict[str, str]) -> RenderableType:
    table = Table.grid(padding=(0, 2))
    for label, value in facts.items():
        if value and value != "unspecified":
            table.add_row(f"[dim]{label}[/]", escape(value))
    return table


def _scheme(number: int) -> str:
    return name_of(device_pb2.Scheme, number, "SCHEME_").replace("none", "dense")


def _offload(number: int) -> str:
    return name_of(plan_pb2.OffloadTier, number, "OFFLOAD_TIER_")


def _source(source: Any) -> str:
    where = source.WhichOneof("location")
    if where is None:
        return ""
    return f"bundled {source.bundled}" if where == "bundled" else str(getattr(source, where))
