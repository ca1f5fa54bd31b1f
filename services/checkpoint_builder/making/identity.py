"""The first gate: every tensor of a checkpoint, as its reader loads it, against what the runtime makes of the source.

The source is read by the runtime's own code, whole and by its own libraries, so that the builder's lazy reading is
checked too; layers are quantised one at a time and let go. Knows nothing of how files were written. Invariant: bytes
are compared, never values: two zeros of different sign differ.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from darkroom.artifacts.folder import open_folder
from darkroom.artifacts.manifest import Manifest
from darkroom.modeling.artifacts.flatten import flatten
from darkroom.modeling.artifacts.reading import load_artifact
from darkroom.modeling.dense import read_folder, read_single_file
from darkroom.modeling.filters import taken_layers
from darkroom.modeling.quantise import quantise_layer
from darkroom.v1 import build_pb2, checkpoint_pb2, plan_pb2
from services.checkpoint_builder.making.component import DTYPES, Dense, OnProgress
from services.checkpoint_builder.making.source import DenseSource
from services.checkpoint_builder.order import Part

NAME = "bit_identity"


def check_identity(
    dense: Dense, manifest: Manifest, folder: Path, device: torch.device, on_progress: OnProgress
) -> checkpoint_pb2.GateCheck:
    """Returns the check. Raises what the reader raises: a checkpoint that can't be loaded is no checkpoint."""
    part, compute_type = dense.part, DTYPES[dense.part.compute_type]
    loaded = load_artifact(open_folder(folder, part.stem, manifest.id), compute_type, torch.device("cpu"))
    runtime = _read(part, dense.source, compute_type)
    taken = {f"{name}.{own}" for name, layer in taken_layers(runtime, part.recipe) for own, _ in _own(layer)}
    found = _named(loaded)
    done, total, differing = 0, dense.dense_bytes, []

    def compare(name: str, tensor: torch.Tensor) -> None:
        nonlocal done
        if not _is_same(tensor, found.pop(name)):
            differing.append(name)
        done += tensor.numel() * compute_type.itemsize
        on_progress(_progress(part, done, total, name))

    _walk(runtime, part, compute_type, device, taken, compare)
    missing = sorted(found)
    measured = f"{manifest.num_tensors} tensors, {manifest.num_quantised} in the scheme: {len(differing)} differ"
    if differing or missing:
        measured += f", {(differing or missing)[0]} first"
    return checkpoint_pb2.GateCheck(
        name=NAME, has_passed=not differing and not missing, measured=measured, wanted="0 differ"
    )


def _walk(
    runtime: nn.Module,
    part: Part,
    compute_type: torch.dtype,
    device: torch.device,
    taken: set[str],
    compare: Callable[[str, torch.Tensor], None],
) -> None:
    plain = plan_pb2.QuantisationRecipe()
    plain.CopyFrom(part.recipe)
    plain.ClearField("pad_names")
    for name, tensor in _named(runtime).items():
        if name not in taken:
            compare(name, tensor)
    for name, layer in list(taken_layers(runtime, part.recipe)):
        quantise_layer(name, layer, part.scheme, plain, compute_type, device)
        for own, tensor in _own(layer):
            compare(f"{name}.{own}", tensor)
        for own in [own for own, _ in _own(layer)]:
            layer._parameters[own] = nn.Parameter(torch.empty(0, device="meta"), requires_grad=False)


def _read(part: Part, source: DenseSource, compute_type: torch.dtype) -> nn.Module:
    if source.file is not None:
        return read_single_file(source.kind, source.file, source.pipeline_folder, part.name, compute_type)
    return read_folder(source.kind, source.folder, compute_type, part.name)


def _named(module: nn.Module) -> dict[str, torch.Tensor]:
    """The state dict as tensors of their own classes, each once."""
    seen: set[int] = set()
    result: dict[str, torch.Tensor] = {}
    for name, tensor in module.state_dict(keep_vars=True).items():
        if id(tensor) not in seen:
            seen.add(id(tensor))
            result[name] = tensor
    return result


def _own(layer: nn.Module) -> list[tuple[str, torch.Tensor]]:
    return [(name, tensor) for name, tensor in layer._parameters.items() if tensor is not None]


def _is_same(first: torch.Tensor, second: torch.Tensor) -> bool:
    kind, parts = flatten("", first)
    other_kind, other_parts = flatten("", second)
    if kind != other_kind or parts.keys() != other_parts.keys():
        return False
    return all(_is_same_plain(parts[name], other_parts[name]) for name in parts)


def _is_same_plain(first: torch.Tensor, second: torch.Tensor) -> bool:
    if first.dtype != second.dtype or first.shape != second.shape:
        return False
    return torch.equal(_bytes(first), _bytes(second))


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)


def _progress(part: Part, done: int, total: int, name: str) -> build_pb2.BuildProgress:
    phase = build_pb2.BUILD_PHASE_COMPARING
    return build_pb2.BuildProgress(
        phase=phase, component=part.name, completed=done, total=max(done, total), detail=name
    )
