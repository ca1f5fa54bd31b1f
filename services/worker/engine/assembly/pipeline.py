"""Fourth stage: the components become the plan's pipeline.

Invariant: only a pipeline class that the installed diffusers exports is made; code from a checkpoint is never run.
"""

from __future__ import annotations

import diffusers

from darkroom.rpc.errors import PlanRefusedError
from services.worker.engine.assembly.rules import extra_parts
from services.worker.engine.assembly.stage import DTYPES, Assembly, Stage
from services.worker.engine.reporting import LoadReporter


class PipelineStage(Stage):
    """Adds tokenizers and scheduler, and makes the pipeline."""

    name = "pipeline"

    def apply(self, assembly: Assembly, report: LoadReporter) -> None:
        report.check()
        assert assembly.folder is not None, "the source stage comes first"
        name = assembly.plan.pipeline_class
        pipeline_class = getattr(diffusers, name, None)
        if not (isinstance(pipeline_class, type) and issubclass(pipeline_class, diffusers.DiffusionPipeline)):
            raise PlanRefusedError(f"diffusers {diffusers.__version__} has no pipeline {name!r}")
        assembly.pipeline = pipeline_class.from_pretrained(  # type: ignore[no-untyped-call]
            assembly.folder,
            local_files_only=True,
            use_safetensors=True,
            dtype=DTYPES[assembly.plan.compute_type],
            **assembly.parts,
            **extra_parts(assembly.plan, assembly.folder, assembly.sources),
        )
        assembly.pipeline.set_progress_bar_config(disable=True)
        denoiser = next(iter(assembly.parts.values()))
        wanted, found = DTYPES[assembly.plan.compute_type], next(denoiser.parameters()).dtype
        assembly.engage("compute_type", resolved=_name(wanted), engaged=_name(found))

    def undo(self, assembly: Assembly) -> None:
        assembly.pipeline = None


def _name(dtype: object) -> str:
    return str(dtype).removeprefix("torch.")
