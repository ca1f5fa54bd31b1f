"""One component, made: from its dense source to weight files and a manifest in a folder.

Knows nothing of orders' fields or of stores. Invariants: the manifest is written last; what is the same source, recipe
and versions is the same bytes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from darkroom.artifacts.manifest import Manifest
from darkroom.artifacts.names import MANIFEST_SUFFIX
from darkroom.modeling.artifacts.outline import Outline, outline, skeleton_of
from darkroom.modeling.artifacts.writing import ShardWriter, Written, versions
from darkroom.modeling.dense import read_folder, read_single_file
from darkroom.rpc.errors import CorruptCheckpointError
from darkroom.v1 import build_pb2, plan_pb2
from services.checkpoint_builder.making.layers import SourceDigest, own_tensors, quantise_into
from services.checkpoint_builder.making.source import DenseSource
from services.checkpoint_builder.making.tensors import LoadedTensors, MappedTensors, Tensors, needs_conversion
from services.checkpoint_builder.order import Part, Task

DTYPES: dict[int, torch.dtype] = {
    plan_pb2.COMPUTE_TYPE_FLOAT32: torch.float32,
    plan_pb2.COMPUTE_TYPE_BFLOAT16: torch.bfloat16,
    plan_pb2.COMPUTE_TYPE_FLOAT16: torch.float16,
}
QUANTISING, HASHING = build_pb2.BUILD_PHASE_QUANTISING, build_pb2.BUILD_PHASE_HASHING
# Told of each step; may raise to stop.
OnProgress = Callable[[build_pb2.BuildProgress], None]


@dataclass(frozen=True)
class Dense:
    """A component's dense tensors, and its skeleton."""

    part: Part
    source: DenseSource
    config: Mapping[str, Any]
    skeleton: nn.Module
    outline: Outline
    tensors: Tensors

    @property
    def dense_bytes(self) -> int:
        """Bytes of what is stored, in the type that it computes in."""
        state = self.skeleton.state_dict()
        size = DTYPES[self.part.compute_type].itemsize
        return sum(state[name].numel() * size for name in self.outline.names)

    def digest(self, pool: ThreadPoolExecutor, on_progress: OnProgress) -> str:
        """Reads every tensor once and returns the source's hash."""
        digest, done, total = SourceDigest(pool), 0, self.dense_bytes
        for path, _, names in own_tensors(self.skeleton, frozenset(self.outline.names)):
            for name in names:
                tensor = self.tensors.get(name)
                digest.add(name, tensor)
                done += tensor.numel() * tensor.element_size()
            on_progress(_progress(HASHING, self.part, done, total, path))
        return digest.hex()


def open_dense(part: Part, source: DenseSource) -> Dense:
    """Opens a component's source; nothing of a folder is read yet, a single file is read whole by the runtime's code.

    Raises:
        CorruptCheckpointError: the configuration or the weights are broken, or don't fit the class.
        SourceRefusedError: no weights.
    """
    config = _config(source.folder)
    compute_type = DTYPES[part.compute_type]
    skeleton = skeleton_of(source.library, source.kind.__name__, config, compute_type)
    if source.file is not None:
        whole = read_single_file(source.kind, source.file, source.pipeline_folder, part.name, compute_type)
        tensors: Tensors = LoadedTensors(whole)
    elif needs_conversion(skeleton, source.folder):
        tensors = LoadedTensors(read_folder(source.kind, source.folder, compute_type, part.name))
    else:
        tensors = MappedTensors(skeleton, source.folder, compute_type)
    return Dense(part, source, config, skeleton, outline(skeleton, part.scheme, part.recipe), tensors)


def make(
    task: Task, dense: Dense, folder: Path, device: torch.device, pool: ThreadPoolExecutor, on_progress: OnProgress
) -> Manifest:
    """Writes a component's files and manifest into `folder`."""
    part, digest, total = dense.part, SourceDigest(pool), dense.dense_bytes

    def on_layer(num_bytes: int, num_layers: int, path: str) -> None:
        on_progress(_progress(QUANTISING, part, num_bytes, total, path, num_layers))

    with ShardWriter(folder, part.stem, dense.outline.names) as writer:
        quantise_into(
            writer,
            dense.skeleton,
            dense.outline,
            dense.tensors,
            part.scheme,
            part.recipe,
            DTYPES[part.compute_type],
            device,
            digest,
            on_layer,
        )
        written = writer.finish()
    manifest = _manifest(task, dense, written, digest.hex())
    write_manifest(folder, part.stem, manifest)
    return manifest


def write_manifest(folder: Path, stem: str, manifest: Manifest) -> None:
    """Writes the manifest whole or not at all."""
    draft = folder / f".{stem}{MANIFEST_SUFFIX}.part"
    draft.write_bytes(manifest.data)
    draft.rename(folder / f"{stem}{MANIFEST_SUFFIX}")


def _manifest(task: Task, dense: Dense, written: Written, source_sha256: str) -> Manifest:
    part, source = dense.part, dense.source
    return Manifest(
        base=task.base,
        family=task.variant.family,
        component=part.name,
        scheme=part.scheme,
        compute_type=part.compute_type,
        recipe=part.recipe,
        library=source.library,
        class_name=source.kind.__name__,
        config=dense.config,
        licence=task.variant.license,
        source=source.origin,
        source_revision=source.revision,
        source_sha256=source_sha256,
        versions=versions(),
        files=written.files,
        tensors=written.tensors,
        kinds=tuple(written.kinds),
        ties=dense.outline.ties,
        num_tensors=dense.outline.num_tensors,
        num_quantised=len(dense.outline.quantised),
    )


def _config(folder: Path) -> dict[str, Any]:
    try:
        config = json.loads((folder / "config.json").read_text())
    except (OSError, ValueError) as garbage:
        raise CorruptCheckpointError(f"{folder.name}/config.json can't be read as JSON") from garbage
    if not isinstance(config, dict):
        raise CorruptCheckpointError(f"{folder.name}/config.json holds no JSON object")
    return config


def _progress(
    phase: build_pb2.BuildPhase.ValueType, part: Part, done: int, total: int, detail: str, num_layers: int = 0
) -> build_pb2.BuildProgress:
    return build_pb2.BuildProgress(
        phase=phase,
        component=part.name,
        completed=done,
        # Some tensors are kept in a wider type.
        total=max(done, total),
        detail=detail,
        num_layers=num_layers,
    )
