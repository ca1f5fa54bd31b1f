"""The verdict on what one build made: every gate, once, over all of its components.

Knows nothing of how a gate measures. Invariant: components of one build pass together or not at all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from darkroom.artifacts.folder import LocalArtifact
from darkroom.artifacts.gates import Gates
from darkroom.v1 import build_pb2, checkpoint_pb2
from services.checkpoint_builder.config import BuilderSettings
from services.checkpoint_builder.gates.report import to_gates
from services.checkpoint_builder.order import Task

SHEET_NAME = "sheet.png"


async def judge(
    task: Task,
    settings: BuilderSettings,
    folder: Path,
    made: Mapping[str, LocalArtifact],
    told: Mapping[str, checkpoint_pb2.GateReport],
    on_news: Callable[[build_pb2.Build], None],
) -> dict[str, Gates]:
    """Returns the verdict on each component.

    Args:
        task: what was built.
        settings: the builder's.
        folder: of the build; the contact sheet is written there.
        made: the checkpoints, by component.
        told: checks that the making process ran, by component.
        on_news: told of progress.
    """
    verdicts: dict[str, Gates] = {}
    has_passed = all(check.has_passed for report in told.values() for check in report.checks)
    for name, artifact in made.items():
        report = checkpoint_pb2.GateReport(checkpoint_id=artifact.manifest.id)
        report.checks.extend(told[name].checks)
        if not has_passed and all(check.has_passed for check in report.checks):
            report.checks.add(name="pair", measured="another component of this build failed", wanted="all pass")
        verdicts[name] = to_gates(report)
    return verdicts
