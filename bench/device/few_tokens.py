"""Short prompts and empty rows: int8's kernel takes more than 16 rows, and a row of zeros has no scale in float8.

Two blocks of each kind at full width, uncompiled: what fails at one block fails at sixty. Knows nothing of plans.
Invariant: no case is caught; one that can't run is told with what it raised.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import torch

from bench.device.building import build_from, quantise
from bench.device.models import noise
from darkroom.knowledge import Catalogue
from darkroom.v1 import device_pb2

INT8, FP8 = device_pb2.SCHEME_INT8, device_pb2.SCHEME_FP8
TOKENS = (1, 13, 16, 17)
SHALLOW: dict[str, dict[str, int]] = {
    "qwen-image": {"num_layers": 2},
    "z-image": {"n_layers": 2, "n_refiner_layers": 1},
    "wan2.2-a14b": {"num_layers": 2},
}


def rows(catalogue: Catalogue, device: torch.device) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields name and outcome of every pair of architecture and prompt."""
    for name, depth in SHALLOW.items():
        known = catalogue.architectures[name]
        shallow = dataclasses.replace(known, config={**known.config, **depth})
        for word, scheme in (("int8", INT8), ("fp8", FP8)):
            module = build_from(shallow, device)
            num_layers = quantise(catalogue, module, name, scheme, device).num_layers
            for tokens in TOKENS:
                for is_empty in (False, True):
                    told = f"{name} {word}, {tokens} tokens{' of zeros' if is_empty else ''}"
                    yield told, {"num_layers": num_layers, **_try(module, _inputs(name, tokens, is_empty, device))}


def _try(module: Any, inputs: dict[str, Any]) -> dict[str, Any]:
    with torch.inference_mode():
        try:
            made = module(**inputs, return_dict=False)[0]
        except RuntimeError as failure:
            return {"is_finite": False, "failed": str(failure).splitlines()[0][:200]}
    return {"is_finite": all(bool(torch.isfinite(part).all()) for part in made)}


def _inputs(name: str, tokens: int, is_empty: bool, device: torch.device) -> dict[str, Any]:
    """A picture of 256 pixels, or a clip of one second at that size, with so many tokens of words."""
    width = {"qwen-image": 3584, "z-image": 2560, "wan2.2-a14b": 4096}[name]
    words = noise(device, tokens, width) * (0 if is_empty else 1)
    half = torch.full((1,), 0.5, device=device, dtype=torch.bfloat16)
    if name == "z-image":
        return {"x": [noise(device, 16, 1, 32, 32)], "t": half, "cap_feats": [words]}
    if name == "wan2.2-a14b":
        moment = torch.full((1,), 500, device=device)
        return {
            "hidden_states": noise(device, 1, 16, 5, 32, 32),
            "timestep": moment,
            "encoder_hidden_states": words[None],
        }
    mask = torch.ones(1, tokens, device=device, dtype=torch.bool)
    return {
        "hidden_states": noise(device, 1, 256, 64),
        "encoder_hidden_states": words[None],
        "encoder_hidden_states_mask": mask,
        "timestep": half,
        "img_shapes": [[(1, 16, 16)]],
    }
