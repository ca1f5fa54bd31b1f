"""What a stage is, and what stages work on.

Invariant: `undo` after a failed or finished `apply` leaves nothing of the stage behind, and never raises.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch

from darkroom.artifacts.folder import LocalArtifact
from darkroom.rpc.errors import (
    CorruptCheckpointError,
    DarkroomError,
    KernelFailedError,
    OutOfMemoryError,
    PlanRefusedError,
    SourceRefusedError,
)
from darkroom.v1 import generation_pb2, plan_pb2
from services.worker.artifact_sources import PickledArtifact
from services.worker.config import WorkerSettings
from services.worker.engine.prompt_cache import PromptCache
from services.worker.engine.reporting import LoadReporter

DTYPES: dict[int, torch.dtype] = {
    plan_pb2.COMPUTE_TYPE_FLOAT32: torch.float32,
    plan_pb2.COMPUTE_TYPE_BFLOAT16: torch.bfloat16,
    plan_pb2.COMPUTE_TYPE_FLOAT16: torch.float16,
}


class Visitor(Protocol):
    """A component that is on the device while it computes."""

    def offload(self) -> None:
        """Leaves the device."""


class Watcher(Protocol):
    """Counts something while pictures are made."""

    def begin(self) -> None:
        """A call of the pipeline begins."""

    def engagements(self) -> list[generation_pb2.Engagement]:
        """What came of it."""


@dataclass
class Assembly:
    """A pipeline under construction, or finished."""

    plan: plan_pb2.Plan
    settings: WorkerSettings
    device: torch.device
    # Filled in by the stages, in this order.
    folder: Path | None = None
    # Folders of components that come from elsewhere.
    sources: dict[str, Path] = field(default_factory=dict)
    # Artifacts that components are read from.
    artifacts: dict[str, LocalArtifact | PickledArtifact] = field(default_factory=dict)
    parts: dict[str, torch.nn.Module] = field(default_factory=dict)
    pipeline: Any = None
    # Text encoders that leave the device once the prompt is encoded.
    visitors: list[Visitor] = field(default_factory=list)
    # What puts global state back as it was found; called in reverse when the pipeline goes.
    restores: list[Callable[[], None]] = field(default_factory=list)
    cache_kind: int = plan_pb2.STEP_CACHE_KIND_OFF
    is_compiled: bool = False
    # What tells, for each picture, what speed stages did to it.
    watchers: list[Watcher] = field(default_factory=list)
    # To be cleared whenever weights of text encoders change.
    prompt_cache: PromptCache | None = None
    # What blocks were compiled for: pictures at once, and pictures that the request brought.
    compiled_for: set[tuple[int, int]] = field(default_factory=set)
    engagements: list[generation_pb2.Engagement] = field(default_factory=list)

    def engage(self, knob: str, *, resolved: str, engaged: str, reason: str = "") -> None:
        """Notes what came true of a knob."""
        self.engagements.append(generation_pb2.Engagement(knob=knob, resolved=resolved, engaged=engaged, reason=reason))


class Stage(ABC):
    """One step of the line."""

    name: str

    @abstractmethod
    def apply(self, assembly: Assembly, report: LoadReporter) -> None:
        """Does its work on the assembly, or raises."""

    @abstractmethod
    def undo(self, assembly: Assembly) -> None:
        """Takes back what `apply` did, wholly or in part."""

    def explain(self, failure: Exception) -> DarkroomError:
        """Returns our error for what `apply` failed with."""
        return explain(failure)


def explain(failure: Exception) -> DarkroomError:
    """Returns our error for an exception of PyTorch or diffusers."""
    if isinstance(failure, DarkroomError):
        return failure
    text = f"{type(failure).__name__}: {str(failure)[:300]}"
    if "VIDEO_PROCESSOR_MAPPING" in text:  # how transformers 5.24 says that torchvision is missing
        return PlanRefusedError("this pipeline's processor needs torchvision, which is not installed on the worker")
    if isinstance(failure, (torch.OutOfMemoryError, MemoryError)) or "not enough memory" in str(failure):
        return OutOfMemoryError(f"the device ran out of memory ({text})")
    if isinstance(failure, ImportError):
        return PlanRefusedError(f"a package that this pipeline needs is missing on the worker ({text})")
    return KernelFailedError(f"the pipeline failed ({text})")


def trigger_of(failure: DarkroomError) -> int:
    """Which fallbacks a failure triggers; 0 for none."""
    if isinstance(failure, OutOfMemoryError):
        return plan_pb2.FALLBACK_TRIGGER_OUT_OF_MEMORY
    if isinstance(failure, KernelFailedError):
        return plan_pb2.FALLBACK_TRIGGER_KERNEL_FAILED
    if isinstance(failure, (CorruptCheckpointError, SourceRefusedError)):
        return plan_pb2.FALLBACK_TRIGGER_SOURCE_FAILED
    return plan_pb2.FALLBACK_TRIGGER_UNSPECIFIED
