"""First stage: the plan's source becomes a folder on this machine.

Trust was checked by the supervisor, and so were the headers of what lies here; what is fetched is checked now.
Invariant: a folder that this stage hands on has whole weight files.
"""

from __future__ import annotations

from services.worker.checkpoint_files import check_component_folder, check_pipeline_folder
from services.worker.engine.assembly.fetching import fetch
from services.worker.engine.assembly.stage import Assembly, Stage
from services.worker.engine.reporting import LoadReporter
from services.worker.plan_checks import source_folder


class SourceStage(Stage):
    """Finds the folder, fetching it from the Hub if it must."""

    name = "source"

    def apply(self, assembly: Assembly, report: LoadReporter) -> None:
        plan = assembly.plan
        assembly.folder = source_folder(plan.source, assembly.settings)
        if assembly.folder is None:
            assembly.folder = fetch(plan.source, report)
            own = [part.name for part in plan.components if not part.HasField("source")]
            check_pipeline_folder(assembly.folder, own, plan.pipeline_class)
        for part in plan.components:
            if part.HasField("source"):
                folder = source_folder(part.source, assembly.settings) or fetch(part.source, report)
                assembly.sources[part.name] = folder / part.source.subfolder
                check_component_folder(assembly.sources[part.name])

    def undo(self, assembly: Assembly) -> None:
        assembly.folder = None
        assembly.sources.clear()
