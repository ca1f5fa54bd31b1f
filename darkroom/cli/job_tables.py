"""How jobs look on a terminal: a line each, the dead with their evidence, and all that is known of one.

Knows nothing of gateways. Invariant: what a caller or a worker wrote is escaped.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import RenderableType

    from darkroom.v1 import job_pb2


def job_table(found: Sequence[job_pb2.Job]) -> RenderableType:
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    from darkroom.cli.text import format_age, shorten, state_of, styled_state

    table = Table(box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False)
    for heading in ("job", "state", "model", "seed", "when", "prompt"):
        table.add_column(heading, no_wrap=heading != "prompt")
    for job in found:
        table.add_row(
            job.id,
            styled_state(state_of(job)),
            job.request.model,
            str(job.request.seed),
            format_age(job.created_at),
            escape(shorten(job.request.prompt, 60)),
        )
    return table


def dead_table(found: Sequence[job_pb2.Job]) -> RenderableType:
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    from darkroom.cli.text import format_age, shorten

    table = Table(box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False)
    for heading in ("job", "reason", "attempts", "when", "evidence", "prompt"):
        table.add_column(heading, no_wrap=heading not in ("evidence", "prompt"))
    for job in found:
        table.add_row(
            job.id,
            job.error.reason,
            str(job.attempts),
            format_age(job.finished_at),
            escape("\n".join(map(_evidence, job.failed_attempts))),
            escape(shorten(job.request.prompt, 40)),
        )
    return table


def _priority(job: job_pb2.Job) -> str:
    from darkroom.v1 import job_pb2

    priority = job.terms.priority
    return job_pb2.JobPriority.Name(priority).removeprefix("JOB_PRIORITY_").lower() if priority else ""


def _relatives(job: job_pb2.Job) -> str:
    return f"of {job.redriven_from}" if job.redriven_from else f"as {job.redriven_as}" if job.redriven_as else ""


def _evidence(attempt: job_pb2.FailedAttempt) -> str:
    """One line: "attempt 1 on gpu-0: ENGINE_DIED, signal 9"."""
    facts = attempt.error.metadata
    how = [f"{name.replace('_', ' ')} {facts[name]}" for name in ("signal", "exit_code") if name in facts]
    return ", ".join([f"attempt {attempt.attempt} on {attempt.worker_id}: {attempt.error.reason}", *how])


def job_card(job: job_pb2.Job) -> RenderableType:
    from rich.markup import escape
    from rich.table import Table

    from darkroom.cli.text import format_bytes, format_time, phase_of, state_of, styled_state

    request, output = job.request, job.output
    facts = {
        "job": job.id,
        "state": styled_state(state_of(job)),
        "prompt": escape(request.prompt),
        "negative": escape(request.negative_prompt),
        "model": request.model,
        "size": f"{request.width}×{request.height}",
        "steps": f"{request.steps}, guidance {request.guidance:g}",
        "seed": str(request.seed),
        "phase": phase_of(job.progress) if state_of(job) == "running" else "",
        "worker": escape(job.worker_id),
        "attempts": str(job.attempts) if job.attempts > 1 else "",
        "created": format_time(job.created_at),
        "started": format_time(job.started_at),
        "finished": format_time(job.finished_at),
        "deadline": format_time(job.deadline_at),
        "priority": _priority(job),
        "tenant": job.tenant if job.tenant not in ("", "default") else "",
        "output": f"{output.content_type}, {format_bytes(output.size_bytes)}" if job.HasField("output") else "",
        "sha256": output.sha256,
        "re-drive": escape(_relatives(job)),
        "error": f"[red]{escape(job.error.message)}[/] [dim]{job.error.reason}[/]" if job.HasField("error") else "",
    }
    table = Table.grid(padding=(0, 2))
    for label, value in facts.items():
        if value:
            table.add_row(f"[dim]{label}[/]", value)
    for attempt in job.failed_attempts:
        line = f"{_evidence(attempt)}, {format_time(attempt.happened_at)}: {attempt.error.message}"
        table.add_row("[dim]failed[/]", escape(line))
    for item in output.engagements:
        table.add_row(f"[dim]{escape(item.knob)}[/]", escape(f"{item.engaged}  {item.reason}".strip()))
    return table
