"""A small artifact for tests that need no tensors."""

from __future__ import annotations

import dataclasses
import hashlib
from pathlib import Path
from typing import Any

from darkroom.artifacts.manifest import ArtifactFile, Manifest, TensorSpec
from darkroom.v1 import device_pb2, plan_pb2

BASE = "black-forest-labs/FLUX.1-dev"
STEM = "FLUX.1-dev-FP8"
RECIPE = plan_pb2.QuantisationRecipe(
    min_features=512,
    feature_multiple=16,
    exclude_names=["norm", "embed"],
    activation_floor=1e-12,
    requires_bfloat16=True,
    fast_accumulate=True,
)


def float8_kind(floor: float | None = 1e-12, granularity: str = "PerRow") -> dict[str, Any]:
    """A float8 tensor with dynamic activations, as it is kept."""
    activations = {"granularity": {"object": granularity, "fields": {"dim": -1}}, "hp_value_lb": floor}
    return {
        "class": "Float8Tensor",
        "fields": {"act_quant_kwargs": {"object": "QuantizeTensorToFloat8Kwargs", "fields": activations}},
    }


def small_manifest(folder: Path | None = None, **fields: Any) -> Manifest:
    """An fp8 denoiser of one file; with a folder, the file is written there."""
    header = b'{"__metadata__":{"format":"pt"}}        '
    content = len(header).to_bytes(8, "little") + header
    digest = hashlib.sha256(content).hexdigest()
    file = ArtifactFile(f"{STEM}.safetensors", digest, len(content), digest)
    if folder is not None:
        (folder / file.name).write_bytes(content)
    manifest = Manifest(
        base=BASE,
        family="flux.1",
        component="transformer",
        scheme=device_pb2.SCHEME_FP8,
        compute_type=plan_pb2.COMPUTE_TYPE_BFLOAT16,
        recipe=RECIPE,
        library="diffusers",
        class_name="FluxTransformer2DModel",
        config={"num_layers": 1},
        licence="Apache-2.0",
        source=BASE,
        source_revision="0123abc",
        source_sha256="0" * 64,
        versions={"torch": "2.13.0", "torchao": "0.18.0"},
        files=(file,),
        tensors={"block.weight": TensorSpec("bfloat16", (512, 512), 0, ("qdata", "scale"))},
        kinds=(float8_kind(),),
        num_tensors=1,
        num_quantised=1,
    )
    return dataclasses.replace(manifest, **fields)
