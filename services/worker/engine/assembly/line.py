"""The order of the stages, and what happens when one fails.

Knows nothing of what stages do. Invariant: `assemble` returns a whole pipeline, or leaves nothing behind.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator

import torch

from darkroom.rpc.errors import CancelledError, DarkroomError
from darkroom.rpc.logs import log
from darkroom.v1 import generation_pb2, plan_pb2
from services.worker.config import WorkerSettings
from services.worker.engine.assembly.attention import AttentionStage
from services.worker.engine.assembly.caching import CachingStage
from services.worker.engine.assembly.components import ComponentsStage
from services.worker.engine.assembly.fitting import check_fit
from services.worker.engine.assembly.pipeline import PipelineStage
from services.worker.engine.assembly.placement import PlacementStage
from services.worker.engine.assembly.positions import PositionsStage
from services.worker.engine.assembly.prompt_caching import PromptCachingStage
from services.worker.engine.assembly.quantisation import QuantisationStage
from services.worker.engine.assembly.source import SourceStage
from services.worker.engine.assembly.speed import SpeedStage
from services.worker.engine.assembly.stage import Assembly, Stage, trigger_of
from services.worker.engine.device import give_back
from services.worker.engine.reporting import LoadReporter

STAGES: tuple[Stage, ...] = (
    SourceStage(),
    ComponentsStage(),
    QuantisationStage(),
    PipelineStage(),
    PlacementStage(),
    AttentionStage(),
    CachingStage(),
    PromptCachingStage(),
    PositionsStage(),
    SpeedStage(),
)


def check_sources(plan: plan_pb2.Plan, settings: WorkerSettings, device: torch.device, report: LoadReporter) -> None:
    """Fetches what the plan's sources lack here and compares it with the plan; no weight is read.

    Raises:
        DarkroomError: as the source stage of a load would.
    """
    stage, assembly = SourceStage(), Assembly(plan, settings, device)
    try:
        stage.apply(assembly, report)
        check_fit(plan, settings)
    except Exception as failure:
        raise stage.explain(failure) from None
    finally:
        stage.undo(assembly)


def assemble(plan: plan_pb2.Plan, settings: WorkerSettings, device: torch.device, report: LoadReporter) -> Assembly:
    """Executes the plan, or the first fallback of its failure's kind that works.

    Raises:
        DarkroomError: the plan's failure, once no fallback is left for it; CancelledError at once.
    """
    candidate, waiting = plan, list(plan.fallbacks)
    while True:
        try:
            return _assemble_once(Assembly(candidate, settings, device), report)
        except CancelledError:
            raise
        except DarkroomError as failure:
            trigger = trigger_of(failure)
            following = _following(waiting, trigger)
            if following is None:
                raise
            log.warning("fallback_taken", model=plan.model, reason=failure.reason, detail=failure.message)
            report.fallback(trigger, failure)
            place, candidate = following
            waiting = [*candidate.fallbacks, *waiting[place + 1 :]]


def dismantle(assembly: Assembly) -> None:
    """Undoes all stages in reverse and gives the memory back."""
    for stage in reversed(STAGES):
        stage.undo(assembly)
    while assembly.restores:
        assembly.restores.pop()()
    gc.collect()
    give_back(assembly.device)


def _assemble_once(assembly: Assembly, report: LoadReporter) -> Assembly:
    for place, stage in enumerate(STAGES):
        try:
            report.check()
            report.progress(_progress(stage.name, place))
            stage.apply(assembly, report)
        except Exception as failure:
            error = stage.explain(failure)
            if not isinstance(failure, DarkroomError):
                log.warning("stage_failed", stage=stage.name, exc_info=failure)
            # The traceback would keep the stage's tensors alive.
            failure.__traceback__ = None
            dismantle(assembly)
            raise error from None
    return assembly


def _following(waiting: list[plan_pb2.Fallback], trigger: int) -> tuple[int, plan_pb2.Plan] | None:
    """(place, plan) of the next fallback for `trigger`; None where there is none."""
    matching: Iterator[tuple[int, plan_pb2.Plan]] = (
        (place, item.plan) for place, item in enumerate(waiting) if trigger and item.trigger == trigger
    )
    return next(matching, None)


def _progress(name: str, place: int) -> generation_pb2.Progress:
    # Reading weights is nearly all of a load: stages before it stand at 0, those after it share the last tenth.
    fraction = 0.0 if place <= 1 else 0.9 + 0.1 * (place - 1) / len(STAGES)
    return generation_pb2.Progress(phase=generation_pb2.PHASE_ASSEMBLING, fraction=fraction, detail=name)
