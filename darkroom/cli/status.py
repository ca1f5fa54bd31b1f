"""`darkroom status`: the gateway, its workers with their devices and models, and the queue.

Invariant: exits 0 only if the gateway says that it can take work, so that scripts can ask.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import typer

from darkroom.cli.session import DEFAULT, Address, AsJson

if TYPE_CHECKING:
    from rich.console import RenderableType

    from darkroom.client import AsyncClient
    from darkroom.v1 import cluster_service_pb2, generation_pb2, job_pb2

MAX_COUNTED_JOBS = 500


def status(as_json: AsJson = False, address: Address = DEFAULT) -> None:
    """Show the gateway, its workers, what is loaded, and the queue.

    [bold]Examples[/]

      darkroom status

      darkroom status --json | jq '.workers[].status.state'

      darkroom status > /dev/null && echo ready
    """
    import json

    from darkroom.cli.session import output_console, with_client

    is_ready, workers, active = with_client(address, _ask)
    if as_json:
        typer.echo(json.dumps(_as_data(address, is_ready, workers, active), indent=2))
    else:
        console = output_console()
        for part in _lines(address, is_ready, workers, active):
            console.print(part)
    if not is_ready:
        raise typer.Exit(1)


async def _ask(
    client: AsyncClient,
) -> tuple[bool, Sequence[cluster_service_pb2.ClusterWorker], Sequence[job_pb2.Job]]:
    from darkroom.v1 import job_pb2

    states = (job_pb2.JOB_STATE_QUEUED, job_pb2.JOB_STATE_RUNNING)
    return await asyncio.gather(
        client.is_ready(), client.list_workers(), client.list_jobs(states=states, limit=MAX_COUNTED_JOBS)
    )


def _as_data(
    address: str,
    is_ready: bool,
    workers: Sequence[cluster_service_pb2.ClusterWorker],
    active: Sequence[job_pb2.Job],
) -> dict[str, Any]:
    from google.protobuf import json_format

    def plain(message: Any) -> dict[str, Any]:
        return json_format.MessageToDict(message, preserving_proto_field_name=True)

    return {
        "address": address,
        "is_ready": is_ready,
        "workers": [plain(worker) for worker in workers],
        "active_jobs": [plain(job) for job in active],
    }


def _lines(
    address: str,
    is_ready: bool,
    workers: Sequence[cluster_service_pb2.ClusterWorker],
    active: Sequence[job_pb2.Job],
) -> list[RenderableType]:
    from darkroom.cli.text import state_of

    states = [state_of(job) for job in active]
    queue = ", ".join(f"{states.count(state)} {state}" for state in ("running", "queued") if state in states)
    health = "[green]ready[/]" if is_ready else "[red]not ready[/]"
    lines: list[RenderableType] = [f"[bold]gateway[/]  {address}  {health}  queue: {queue or 'empty'}"]
    for worker in workers:
        lines += ["", _worker(worker)]
    if not workers:
        lines += ["", "[yellow]no workers are configured[/]"]
    return lines


def _worker(worker: cluster_service_pb2.ClusterWorker) -> RenderableType:
    from rich.console import Group
    from rich.markup import escape
    from rich.padding import Padding
    from rich.table import Table

    from darkroom.cli.text import styled_state, worker_state_of

    if not worker.is_reachable:
        return f"[bold]worker[/]   {worker.address}  [red]unreachable[/]  {escape(worker.problem)}"
    status = worker.status
    state = styled_state(worker_state_of(status))
    head = f"[bold]worker[/]   {escape(status.worker_id)}  {worker.address}  {state}"
    facts = Table.grid(padding=(0, 2))
    for label, value in _facts(worker):
        facts.add_row(f"[dim]{label}[/]", value)
    return Group(head, Padding(facts, (0, 0, 0, 2), expand=False))


def _facts(worker: cluster_service_pb2.ClusterWorker) -> list[tuple[str, str]]:
    from rich.markup import escape

    from darkroom.cli.text import format_bytes, format_seconds

    status = worker.status
    memory = status.device.memory
    used = memory.total_bytes - memory.free_bytes
    device = f"{status.device.id}  {status.device.name}".strip()
    facts = [("device", escape(device))] if device else []
    if memory.total_bytes:
        facts.append(
            (
                "memory",
                f"{format_bytes(used)} of {format_bytes(memory.total_bytes)} used: "
                f"engine {format_bytes(memory.engine_bytes)}, others {format_bytes(memory.foreign_bytes)}",
            )
        )
    if status.HasField("loaded"):
        loaded = status.loaded
        measured = format_bytes(loaded.measured_bytes)
        planned = format_bytes(loaded.planned_bytes)
        facts.append(
            (
                "model",
                f"[cyan]{escape(loaded.plan.model)}[/], loaded in {format_seconds(loaded.load_seconds)}; "
                f"weights {measured} (planned {planned})",
            )
        )
        plain = [item for item in loaded.engagements if _is_as_planned(item)]
        facts.append(("", escape(" · ".join(f"{item.knob} {item.engaged}" for item in plain))))
        facts += [("", _engagement(item)) for item in loaded.engagements if not _is_as_planned(item)]
    else:
        facts.append(("model", "none loaded"))
    if status.job_ids:
        facts.append(("jobs", ", ".join(status.job_ids)))
    if status.HasField("last_failure"):
        facts.append(("last failure", f"[red]{escape(status.last_failure.message)}[/]"))
    return facts


def _is_as_planned(item: generation_pb2.Engagement) -> bool:
    return not item.reason and item.resolved in ("", item.engaged) and item.requested in ("", "auto", item.engaged)


def _engagement(item: generation_pb2.Engagement) -> str:
    from rich.markup import escape

    text = escape(f"{item.knob}: {item.engaged}")
    if item.requested not in ("", "auto", item.engaged):
        text += f" [yellow](asked: {escape(item.requested)})[/]"
    if item.resolved not in ("", item.engaged):
        text += f" [yellow](planned: {escape(item.resolved)})[/]"
    return text + (f" [dim]{escape(item.reason)}[/]" if item.reason else "")
