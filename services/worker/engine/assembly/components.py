"""Second stage: every weighted component of the plan is read, one after the other, with its bytes told.

Invariant: a component that lacks a tensor is refused, never filled with random weights in silence.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from diffusers import GGUFQuantizationConfig

from darkroom.modeling.dense import find_class, read_folder, read_single_file
from darkroom.rpc.errors import CorruptCheckpointError, DarkroomError, KernelFailedError
from darkroom.v1 import generation_pb2, plan_pb2
from services.worker.artifact_sources import is_artifact
from services.worker.checkpoint_files import read_json
from services.worker.component_files import FILE_KINDS, GGUF
from services.worker.engine.assembly import artifacts
from services.worker.engine.assembly.random_weights import RANDOM, make_random
from services.worker.engine.assembly.stage import DTYPES, Assembly, Stage, explain
from services.worker.engine.reporting import LoadReporter

# Of an artifact, between two reports.
TOLD_BYTES = 64 * 2**20


class ComponentsStage(Stage):
    """Reads the weights: dense, in the plan's types, or quantised beforehand."""

    name = "components"

    def apply(self, assembly: Assembly, report: LoadReporter) -> None:
        if assembly.plan.source.kind == RANDOM:
            reason = "weights are random numbers, for measuring: no picture shows anything"
            assembly.engage("weights", resolved="random", engaged="random", reason=reason)
        index = _index(assembly)
        total = sum(part.weight_bytes for part in assembly.plan.components)
        done = 0
        for part in assembly.plan.components:
            report.check()
            report.progress(_progress(part.name, done, total))
            if part.name in assembly.artifacts:
                arrived = _Arrivals(part.name, done, total, report)
                assembly.parts[part.name] = artifacts.read(part, assembly, arrived)
            elif part.source.kind in FILE_KINDS:
                assembly.parts[part.name] = _read_file(assembly, index.get(part.name), part)
            elif part.name in assembly.sources:
                assembly.parts[part.name] = _read(assembly.sources[part.name], class_of(part), part)
            elif assembly.plan.source.kind == RANDOM:
                named = index.get(part.name) or class_of(part)
                folder = assembly.folder / part.name if assembly.folder is not None else None
                assembly.parts[part.name] = make_random(named_class(named, part), folder, part, assembly)
            else:
                assert assembly.folder is not None, "the source stage comes first"
                assembly.parts[part.name] = _read(assembly.folder / part.name, index.get(part.name), part)
            done += part.weight_bytes
            report.progress(_progress(part.name, done, total))
        if assembly.artifacts:
            wanted = [f"{part.name}: {part.source.file}" for part in assembly.plan.components if is_artifact(part)]
            engaged = [f"{name}: {artifacts.told(artifact)}" for name, artifact in assembly.artifacts.items()]
            assembly.engage("artifacts", resolved=", ".join(wanted), engaged=", ".join(engaged))

    def undo(self, assembly: Assembly) -> None:
        assembly.parts.clear()

    def explain(self, failure: Exception) -> DarkroomError:
        return explain_reading(failure)


class _Arrivals:
    """Tells bytes of a component as they come, and stops when asked to."""

    def __init__(self, name: str, done: int, total: int, report: LoadReporter) -> None:
        self._name, self._done, self._total, self._report = name, done, total, report
        self._told = done

    def __call__(self, count: int) -> None:
        self._report.check()
        self._done += count
        if self._done - self._told >= TOLD_BYTES:
            self._told = self._done
            self._report.progress(_progress(self._name, min(self._done, self._total), self._total))


def explain_reading(failure: Exception) -> DarkroomError:
    """Returns our error: what can't be read is a broken source, unless memory or a package was missing."""
    known = explain(failure)
    if isinstance(known, KernelFailedError):
        return CorruptCheckpointError(f"the weights can't be read: {known.message}")
    return known


def _index(assembly: Assembly) -> dict[str, Any]:
    """The pipeline's own index; an empty one where no folder is needed."""
    if assembly.folder is None:
        return {}
    return read_json(assembly.folder / "model_index.json", missing="the folder is no pipeline")


def class_of(part: plan_pb2.ComponentPlan) -> tuple[str, str]:
    """(library, class) of a component that the pipeline's own index does not name."""
    return ("transformers" if part.role == plan_pb2.COMPONENT_ROLE_TEXT_ENCODER else "diffusers"), part.class_name


def named_class(named: Any, part: plan_pb2.ComponentPlan) -> Any:
    """The class of a component, by (library, class) as an index names it. Raises SourceRefusedError."""
    library, class_name = named or ("", "")
    return find_class(library, class_name, part.name)


def _read(folder: Path, named: Any, part: plan_pb2.ComponentPlan) -> torch.nn.Module:
    return read_folder(named_class(named, part), folder, DTYPES[part.compute_type], part.name)


def _read_file(assembly: Assembly, named: Any, part: plan_pb2.ComponentPlan) -> torch.nn.Module:
    """Reads a component from one file, by the configuration that the pipeline's folder has for it."""
    assert assembly.folder is not None
    component = named_class(named or class_of(part), part)
    compute_type = DTYPES[part.compute_type]
    options: dict[str, Any] = {}
    if part.source.kind == GGUF:
        options["quantization_config"] = GGUFQuantizationConfig(compute_dtype=compute_type)  # type: ignore[no-untyped-call]
    return read_single_file(component, assembly.sources[part.name], assembly.folder, part.name, compute_type, **options)


def _progress(name: str, done: int, total: int) -> generation_pb2.Progress:
    return generation_pb2.Progress(
        phase=generation_pb2.PHASE_ASSEMBLING,
        completed=done,
        total=total,
        fraction=0.9 * done / total if total else 0.0,
        detail=name,
    )
