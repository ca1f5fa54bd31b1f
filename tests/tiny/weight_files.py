"""A denoiser in one file, safetensors or GGUF, and a plan that reads it from there."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf

from darkroom.v1 import checkpoint_pb2, device_pb2, plan_pb2
from tests.tiny.flux import tiny_flux_plan

KINDS = {"gguf": checkpoint_pb2.CHECKPOINT_KIND_GGUF, "safetensors": checkpoint_pb2.CHECKPOINT_KIND_SINGLE_FILE}


def write_gguf(path: Path, tensors: Mapping[str, Any], kind: str = "Q8_0", architecture: str = "flux") -> None:
    """Writes linear weights in a type of GGUF and the rest in float32, which is what diffusers reads."""
    number = gguf.GGMLQuantizationType[kind]
    block = gguf.GGML_QUANT_SIZES[number][0]
    writer = gguf.GGUFWriter(path, architecture)
    for name, tensor in tensors.items():
        values = tensor.float().numpy()
        if name.endswith(".weight") and values.ndim == 2 and values.shape[1] % block == 0:
            writer.add_tensor(name, gguf.quants.quantize(values, number), raw_dtype=number)
        else:
            writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def plan_with_file(pipeline: Path, file: Path) -> plan_pb2.Plan:
    """A plan for a tiny FLUX.1 whose denoiser comes from a file; its ending tells the kind."""
    plan = tiny_flux_plan(pipeline)
    part = plan.components[2]
    part.source.kind, part.source.path = KINDS[file.suffix.removeprefix(".")], str(file)
    if part.source.kind == checkpoint_pb2.CHECKPOINT_KIND_GGUF:
        part.scheme = device_pb2.SCHEME_GGUF
    part.weight_bytes = file.stat().st_size if file.exists() else 0
    return plan
