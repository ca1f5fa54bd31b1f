"""Second stage: every weighted component of the plan is read, one after the other, with its bytes told.

Invariant: a component that lacks a tensor is refused, never filled with random weights in silence.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import torch
from diffusers import GGUFQuantizationConfig

from darkroom.rpc.errors import CorruptCheckpointError, DarkroomError, KernelFailedError, SourceRefusedError
from darkroom.v1 import generation_pb2, plan_pb2
from services.worker.checkpoint_files import read_json
from services.worker.component_files import FILE_KINDS, GGUF
from services.worker.engine.assembly.random_weights import RANDOM, make_random
from services.worker.engine.assembly.stage import DTYPES, Assembly, Stage, explain
from services.worker.engine.reporting import LoadReporter

# Classes are taken from these packages only: an index that names another one would have its code imported.
LIBRARIES = frozenset({"diffusers", "transformers"})


class ComponentsStage(Stage):
    """Reads the weights, dense, in the plan's types."""

    name = "components"

    def apply(self, assembly: Assembly, report: LoadReporter) -> None:
        assert assembly.folder is not None, "the source stage comes first"
        if assembly.plan.source.kind == RANDOM:
            reason = "weights are random numbers, for measuring: no picture shows anything"
            assembly.engage("weights", resolved="random", engaged="random", reason=reason)
        index = read_json(assembly.folder / "model_index.json", missing="the folder is no pipeline")
        total = sum(part.weight_bytes for part in assembly.plan.components)
        done = 0
        for part in assembly.plan.components:
            report.check()
            report.progress(_progress(part.name, done, total))
            if part.source.kind in FILE_KINDS:
                assembly.parts[part.name] = _read_file(assembly, index.get(part.name), part)
            elif part.name in assembly.sources:
                assembly.parts[part.name] = _read(assembly.sources[part.name], _class_of(part), part)
            elif assembly.plan.source.kind == RANDOM:
                named = index.get(part.name) or _class_of(part)
                made = make_random(_find_class(named, part), assembly.folder / part.name, part, assembly.device)
                assembly.parts[part.name] = made
            else:
                assembly.parts[part.name] = _read(assembly.folder / part.name, index.get(part.name), part)
            done += part.weight_bytes
            report.progress(_progress(part.name, done, total))

    def undo(self, assembly: Assembly) -> None:
        assembly.parts.clear()

    def explain(self, failure: Exception) -> DarkroomError:
        """What can't be read is a broken source, unless memory or a package was missing."""
        known = explain(failure)
        if isinstance(known, KernelFailedError):
            return CorruptCheckpointError(f"the weights can't be read: {known.message}")
        return known


def _class_of(part: plan_pb2.ComponentPlan) -> tuple[str, str]:
    """(library, class) of a component that the pipeline's own index does not name."""
    return ("transformers" if part.role == plan_pb2.COMPONENT_ROLE_TEXT_ENCODER else "diffusers"), part.class_name


def _find_class(named: Any, part: plan_pb2.ComponentPlan) -> Any:
    library, class_name = named or ("", "")
    if library not in LIBRARIES:
        raise SourceRefusedError(f"{part.name} comes from {library!r}; only diffusers and transformers are loaded")
    component = getattr(importlib.import_module(library), class_name, None)
    if component is None:
        raise SourceRefusedError(f"the installed {library} has no class {class_name!r}")
    return component


def _read(folder: Path, named: Any, part: plan_pb2.ComponentPlan) -> torch.nn.Module:
    component = _find_class(named, part)
    module, report = component.from_pretrained(
        folder,
        local_files_only=True,
        use_safetensors=True,
        output_loading_info=True,
        dtype=DTYPES[part.compute_type],
    )
    if problem := _misfit(report):
        raise CorruptCheckpointError(f"the weights of {part.name} don't fit a {component.__name__}: {problem}")
    return module.eval()  # type: ignore[no-any-return]


def _read_file(assembly: Assembly, named: Any, part: plan_pb2.ComponentPlan) -> torch.nn.Module:
    """Reads a component from one file, by the configuration that the pipeline's folder has for it."""
    library, class_name = named or _class_of(part)
    component = getattr(importlib.import_module(library), class_name, None) if library == "diffusers" else None
    if component is None or not hasattr(component, "from_single_file"):
        raise SourceRefusedError(f"{part.name} is a {class_name}, which can't be read from one file")
    compute_type = DTYPES[part.compute_type]
    options: dict[str, Any] = {}
    if part.source.kind == GGUF:
        options["quantization_config"] = GGUFQuantizationConfig(compute_dtype=compute_type)  # type: ignore[no-untyped-call]
    file = assembly.sources[part.name]
    try:
        module: torch.nn.Module = component.from_single_file(
            str(file),
            config=str(assembly.folder),
            subfolder=part.name,
            local_files_only=True,
            torch_dtype=compute_type,
            **options,
        )
    except (IndexError, KeyError, ValueError, RuntimeError) as misfit:
        if isinstance(misfit, torch.OutOfMemoryError):
            raise
        # Names that are not all diffusers' are taken for the original ones, whose conversion then trips anywhere.
        text = f"a tensor is missing or of another shape ({type(misfit).__name__}: {str(misfit)[:120]})"
        raise CorruptCheckpointError(f"{file.name} doesn't fit a {class_name}: {text}", file=file.name) from misfit
    if missing := [name for name, tensor in module.named_parameters() if tensor.is_meta]:
        problem = f"{len(missing)} tensors are missing, {missing[0]} first"
        raise CorruptCheckpointError(f"{file.name} doesn't fit a {class_name}: {problem}", file=file.name)
    return module.eval()


def _misfit(report: dict[str, Any]) -> str:
    """What is wrong between a file and its class; empty where they fit."""
    for kind in ("missing_keys", "mismatched_keys", "error_msgs"):
        if found := list(report.get(kind) or ()):
            return f"{len(found)} {kind.replace('_', ' ')}, {str(found[0])[:120]} first"
    return ""


def _progress(name: str, done: int, total: int) -> generation_pb2.Progress:
    return generation_pb2.Progress(
        phase=generation_pb2.PHASE_ASSEMBLING,
        completed=done,
        total=total,
        fraction=0.9 * done / total if total else 0.0,
        detail=name,
    )
