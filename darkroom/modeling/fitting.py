"""Whether weights fit a class and its configuration, by the shapes in their headers: no weight is read.

Knows nothing of plans. Invariant: folders are judged by the very loader that reads them, on the meta device.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from diffusers.loaders import single_file_model
from torch import nn

from darkroom.modeling.dense import read_folder
from darkroom.rpc.errors import CorruptCheckpointError, SourceRefusedError

META = torch.device("meta")
# How diffusers reads single files; untyped.
single_file: Any = single_file_model


def fit_folder(kind: Any, folder: Path, component: str) -> nn.Module:
    """Returns the component on the meta device.

    In float32, which is PyTorch's own default: loaders set the process's default type for the time being.

    Raises:
        CorruptCheckpointError: a tensor is missing or of another shape.
    """
    return read_folder(kind, folder, torch.float32, component, device_map="meta")


def fit_file(
    kind: Any, shapes: Mapping[str, tuple[int, ...]], file_name: str, pipeline_folder: Path, component: str
) -> nn.Module:
    """Returns the component on the meta device, built by the configuration that the pipeline's folder has for it.

    Args:
        kind: class of diffusers.
        shapes: of the file's tensors, as they are when nothing is packed.
        file_name: for messages.
        pipeline_folder: holds `component`/config.json.
        component: attribute on the pipeline.

    Raises:
        SourceRefusedError: the class can't be read from one file.
        CorruptCheckpointError: a tensor is missing or of another shape.
    """
    mapped = single_file._get_single_file_loadable_mapping_class(kind) if hasattr(kind, "from_single_file") else None
    if mapped is None:
        raise SourceRefusedError(f"{component} is a {kind.__name__}, which can't be read from one file")
    config = kind.load_config(pipeline_folder, subfolder=component, local_files_only=True)
    with META:
        module: nn.Module = kind.from_config(config)
        found = {name: torch.empty(shape) for name, shape in shapes.items()}
    wanted = module.state_dict()
    try:
        # As diffusers 0.42's from_single_file decides.
        if single_file._should_convert_state_dict_to_diffusers(wanted, found):
            convert = single_file.SINGLE_FILE_LOADABLE_CLASSES[mapped]["checkpoint_mapping_fn"]
            found = convert(config=config, checkpoint=found)
        problem = _misfit(wanted, found)
    except (IndexError, KeyError, ValueError, RuntimeError, TypeError, AttributeError) as misfit:
        # Names that are not all diffusers' are taken for the original ones, whose conversion then trips anywhere.
        problem = f"a tensor is missing or of another shape ({type(misfit).__name__}: {str(misfit)[:120]})"
    if problem:
        raise CorruptCheckpointError(f"{file_name} doesn't fit a {kind.__name__}: {problem}", file=file_name)
    return module.eval()


def count_parameters(module: nn.Module) -> int:
    """Returns how many numbers a module's weights hold, shared ones counted once."""
    return sum(parameter.numel() for parameter in module.parameters())


def _misfit(wanted: Mapping[str, torch.Tensor], found: Mapping[str, torch.Tensor]) -> str:
    if missing := sorted(wanted.keys() - found.keys()):
        return f"{len(missing)} tensors are missing, {missing[0]} first"
    for name, tensor in wanted.items():
        if tensor.shape != found[name].shape:
            return f"{name} has the shape {tuple(found[name].shape)}, where {tuple(tensor.shape)} is wanted"
    return ""
