"""Fourth stage: the components become the plan's pipeline.

Where weights are random and no folder is needed, stand-ins take the place of tokenizers and schedulers.
Invariant: only a pipeline class that the installed diffusers exports is made; code from a checkpoint is never run.
"""

from __future__ import annotations

from typing import Any

import diffusers

from darkroom.rpc.errors import PlanRefusedError
from darkroom.v1 import plan_pb2
from services.worker.engine.assembly.random_weights import make_pipeline
from services.worker.engine.assembly.rules import extra_parts
from services.worker.engine.assembly.stage import DTYPES, Assembly, Stage
from services.worker.engine.reporting import LoadReporter

DENOISER = plan_pb2.COMPONENT_ROLE_DENOISER


class PipelineStage(Stage):
    """Adds tokenizers and scheduler, and makes the pipeline."""

    name = "pipeline"

    def apply(self, assembly: Assembly, report: LoadReporter) -> None:
        report.check()
        name = assembly.plan.pipeline_class
        pipeline_class = getattr(diffusers, name, None)
        if not (isinstance(pipeline_class, type) and issubclass(pipeline_class, diffusers.DiffusionPipeline)):
            raise PlanRefusedError(f"diffusers {diffusers.__version__} has no pipeline {name!r}")
        assembly.pipeline = _made(assembly, pipeline_class)
        assembly.pipeline.set_progress_bar_config(disable=True)
        self._engage(assembly)

    def undo(self, assembly: Assembly) -> None:
        assembly.pipeline = None

    def _engage(self, assembly: Assembly) -> None:
        """Tells the type that the denoiser computes in, and why it is not the one that was wanted."""
        plan = assembly.plan
        name = next((part.name for part in plan.components if part.role == DENOISER), plan.components[0].name)
        promoted = (reason.sentence for reason in plan.reasons if reason.code == "FLOAT16_PROMOTED")
        wanted, found = DTYPES[plan.compute_type], assembly.parts[name].dtype
        assembly.engage("compute_type", resolved=_name(wanted), engaged=_name(found), reason=next(promoted, ""))


def _made(assembly: Assembly, pipeline_class: Any) -> Any:
    if assembly.folder is None:
        pipeline, stand_ins = make_pipeline(pipeline_class, assembly.parts)
        reason = "nothing is read from a repository: tokens are bytes, schedulers and guiders are their classes' own"
        assembly.engage("stand_ins", resolved=", ".join(stand_ins), engaged=", ".join(stand_ins), reason=reason)
        return pipeline
    return pipeline_class.from_pretrained(
        assembly.folder,
        local_files_only=True,
        use_safetensors=True,
        dtype=DTYPES[assembly.plan.compute_type],
        **assembly.parts,
        **extra_parts(assembly.plan, assembly.folder, assembly.sources),
    )


def _name(dtype: object) -> str:
    return str(dtype).removeprefix("torch.")
