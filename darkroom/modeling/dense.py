"""Dense components as the runtime reads them: from a folder, or from one file by the configuration of a folder.

The worker loads with it, and the checkpoint builder compares with it. Knows nothing of plans or pipelines. Invariant: a
component that lacks a tensor is refused, never filled with random weights in silence.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import torch
from torch import nn

from darkroom.rpc.errors import CorruptCheckpointError, SourceRefusedError

# Classes are taken from these packages only: an index that names another one would have its code imported.
LIBRARIES = frozenset({"diffusers", "transformers"})


def find_class(library: str, class_name: str, component: str) -> Any:
    """Returns a component's class.

    Args:
        library: the package that exports it.
        class_name: its name there.
        component: attribute on the pipeline, for messages.

    Raises:
        SourceRefusedError: another package, or no such class in the installed one.
    """
    if library not in LIBRARIES:
        raise SourceRefusedError(f"{component} comes from {library!r}; only diffusers and transformers are loaded")
    kind = getattr(importlib.import_module(library), class_name, None)
    if kind is None:
        raise SourceRefusedError(f"the installed {library} has no class {class_name!r}")
    return kind


def read_folder(kind: Any, folder: Path, compute_type: torch.dtype, component: str, **options: Any) -> nn.Module:
    """Returns a component with the weights of its folder, in evaluation mode.

    Args:
        kind: class of diffusers or transformers.
        folder: holds config.json and weights.
        compute_type: of the weights.
        component: attribute on the pipeline, for messages.
        options: for `from_pretrained`.

    Raises:
        CorruptCheckpointError: the weights don't fit the class.
    """
    module, report = kind.from_pretrained(
        folder, local_files_only=True, use_safetensors=True, output_loading_info=True, dtype=compute_type, **options
    )
    if problem := _misfit(report):
        raise CorruptCheckpointError(f"the weights of {component} don't fit a {kind.__name__}: {problem}")
    return module.eval()  # type: ignore[no-any-return]


def read_single_file(
    kind: Any, file: Path, pipeline_folder: Path, component: str, compute_type: torch.dtype, **options: Any
) -> nn.Module:
    """Returns a component with the weights of one file, by the configuration that the pipeline's folder has for it.

    Args:
        kind: class of diffusers.
        file: safetensors or GGUF, under the names of diffusers or of the original code.
        pipeline_folder: holds `component`/config.json.
        component: attribute on the pipeline.
        compute_type: of what is not quantised.
        options: for `from_single_file`.

    Raises:
        SourceRefusedError: the class can't be read from one file.
        CorruptCheckpointError: the weights don't fit the class.
    """
    if not hasattr(kind, "from_single_file"):
        raise SourceRefusedError(f"{component} is a {kind.__name__}, which can't be read from one file")
    try:
        module: nn.Module = kind.from_single_file(
            str(file),
            config=str(pipeline_folder),
            subfolder=component,
            local_files_only=True,
            torch_dtype=compute_type,
            **options,
        )
    except (IndexError, KeyError, ValueError, RuntimeError) as misfit:
        if isinstance(misfit, torch.OutOfMemoryError):
            raise
        # Names that are not all diffusers' are taken for the original ones, whose conversion then trips anywhere.
        text = f"a tensor is missing or of another shape ({type(misfit).__name__}: {str(misfit)[:120]})"
        raise CorruptCheckpointError(f"{file.name} doesn't fit a {kind.__name__}: {text}", file=file.name) from misfit
    if missing := [name for name, tensor in module.named_parameters() if tensor.is_meta]:
        problem = f"{len(missing)} tensors are missing, {missing[0]} first"
        raise CorruptCheckpointError(f"{file.name} doesn't fit a {kind.__name__}: {problem}", file=file.name)
    return module.eval()


def _misfit(report: dict[str, Any]) -> str:
    """What is wrong between a file and its class; empty where they fit."""
    for kind in ("missing_keys", "mismatched_keys", "error_msgs"):
        if found := list(report.get(kind) or ()):
            return f"{len(found)} {kind.replace('_', ' ')}, {str(found[0])[:120]} first"
    return ""
