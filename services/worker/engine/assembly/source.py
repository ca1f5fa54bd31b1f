"""First stage: the plan's source becomes a folder on this machine.

Trust was checked by the supervisor, and so were the headers of what lies here; what is fetched is checked now.
Invariant: a folder that this stage hands on has whole weight files.
"""

from __future__ import annotations

from pathlib import Path

from darkroom.rpc.errors import DarkroomError
from darkroom.v1 import checkpoint_pb2
from services.worker.artifact_sources import is_artifact
from services.worker.checkpoint_files import check_component_folder, check_pipeline_folder
from services.worker.component_files import FILE_KINDS, read_file_header, source_file
from services.worker.engine.assembly.artifacts import obtain
from services.worker.engine.assembly.components import explain_reading
from services.worker.engine.assembly.fetching import fetch
from services.worker.engine.assembly.fitting import check_fit
from services.worker.engine.assembly.random_weights import RANDOM
from services.worker.engine.assembly.stage import Assembly, Stage
from services.worker.engine.reporting import LoadReporter
from services.worker.likeness import check_classes
from services.worker.plan_checks import source_folder


class SourceStage(Stage):
    """Finds the folder, fetching it from the Hub if it must."""

    name = "source"

    def apply(self, assembly: Assembly, report: LoadReporter) -> None:
        plan = assembly.plan
        assembly.folder = source_folder(plan.source, assembly.settings)
        if assembly.folder is None and plan.source.kind == RANDOM:
            return
        if assembly.folder is None:
            replaced = [part.name for part in plan.components if part.HasField("source")]
            assembly.folder = fetch(plan.source, report, without=replaced)
            own = [part.name for part in plan.components if not part.HasField("source")]
            check_pipeline_folder(assembly.folder, own, plan.pipeline_class)
            check_classes(assembly.folder, [part for part in plan.components if not part.HasField("source")])
            check_fit(plan, assembly.settings)
        for part in plan.components:
            if part.HasField("dense_source"):
                assembly.sources[part.name] = _without_weights(part.dense_source, assembly, report)
            if is_artifact(part):
                assembly.artifacts[part.name] = obtain(part, assembly, report)
            elif part.HasField("source"):
                assembly.sources[part.name] = _own_source(assembly, part.source, report)

    def undo(self, assembly: Assembly) -> None:
        assembly.folder = None
        assembly.sources.clear()
        assembly.artifacts.clear()

    def explain(self, failure: Exception) -> DarkroomError:
        return explain_reading(failure)


def _without_weights(source: checkpoint_pb2.CheckpointSource, assembly: Assembly, report: LoadReporter) -> Path:
    """The folder of a component whose weights come as an artifact: its configuration and tokenizer."""
    folder = source_folder(source, assembly.settings) or fetch(source, report, without=[source.subfolder])
    return folder / source.subfolder


def _own_source(assembly: Assembly, source: checkpoint_pb2.CheckpointSource, report: LoadReporter) -> Path:
    """The folder or file of a component that comes from elsewhere than the pipeline."""
    if source.kind in FILE_KINDS:
        file = source_file(source, assembly.settings)
        if file is None:
            file = fetch(source, report) / source.file
            read_file_header(file, source.kind)
        return file
    folder = (source_folder(source, assembly.settings) or fetch(source, report)) / source.subfolder
    check_component_folder(folder)
    return folder
