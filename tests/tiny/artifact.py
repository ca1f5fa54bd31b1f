"""Artifacts of tiny components: what a builder makes, small enough for a test.

Knows nothing of how builders stream layers. Invariant: weights are quantised by the runtime's own code.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import torch
from torch import nn

from darkroom.artifacts.folder import LocalArtifact
from darkroom.artifacts.gates import Gates
from darkroom.artifacts.manifest import Manifest, clean_config
from darkroom.artifacts.names import GATES_SUFFIX, MANIFEST_SUFFIX, stem_of
from darkroom.modeling.artifacts.outline import outline
from darkroom.modeling.artifacts.writing import ShardWriter, versions
from darkroom.modeling.dense import read_folder
from darkroom.modeling.quantise import quantise
from darkroom.v1 import plan_pb2

DTYPES = {
    torch.float32: plan_pb2.COMPUTE_TYPE_FLOAT32,
    torch.bfloat16: plan_pb2.COMPUTE_TYPE_BFLOAT16,
}
PASSED = [{"name": "bit_identity", "passed": True}]


def build_artifact(
    folder: Path,
    source: Path,
    kind: Any,
    component: str,
    scheme: int,
    recipe: plan_pb2.QuantisationRecipe,
    *,
    base: str,
    compute_type: torch.dtype = torch.bfloat16,
    has_passed: bool = True,
    told_recipe: plan_pb2.QuantisationRecipe | None = None,
    **fields: Any,
) -> LocalArtifact:
    """Quantises a component and writes its artifact.

    Args:
        folder: where to; made where it is absent.
        source: the component's dense folder.
        kind: its class.
        component: attribute on the pipeline.
        scheme: of darkroom.v1.Scheme.
        recipe: which layers.
        base: what the artifact says it was made of.
        compute_type: of what stays dense.
        has_passed: also writes passed gates.
        told_recipe: what the manifest says instead of `recipe`.
        fields: of the manifest that say something else than the truth.
    """
    folder.mkdir(parents=True, exist_ok=True)
    module = read_folder(kind, source, compute_type, component)
    content = outline(module, scheme, recipe)
    quantise(module, scheme, recipe, compute_type, torch.device("cpu"))
    stem = stem_of(base, component, scheme)
    with ShardWriter(folder, stem, content.names) as writer:
        for name, tensor in stored(module, content.names).items():
            writer.add(name, tensor)
        written = writer.finish()
    manifest = Manifest(
        **{
            "base": base,
            "family": "tiny",
            "component": component,
            "scheme": scheme,
            "compute_type": DTYPES[compute_type],
            "recipe": told_recipe or recipe,
            "library": kind.__module__.partition(".")[0],
            "class_name": kind.__name__,
            "config": clean_config(json.loads((source / "config.json").read_text())),
            "licence": "Apache-2.0",
            "source": base,
            "source_revision": "",
            "source_sha256": hashlib.sha256(base.encode()).hexdigest(),
            "versions": versions(),
            "files": written.files,
            "tensors": written.tensors,
            "kinds": tuple(written.kinds),
            "ties": content.ties,
            "num_tensors": content.num_tensors,
            "num_quantised": len(content.quantised),
        }
        | fields
    )
    (folder / (stem + MANIFEST_SUFFIX)).write_bytes(manifest.data)
    if has_passed:
        (folder / (stem + GATES_SUFFIX)).write_bytes(Gates(manifest.id, PASSED).data)
    return LocalArtifact(manifest, {file.name: folder / file.name for file in manifest.files})


def stored(module: nn.Module, names: tuple[str, ...]) -> dict[str, torch.Tensor]:
    """Returns the tensors of a state dict by these names."""
    state = module.state_dict()
    return {name: state[name] for name in names}
