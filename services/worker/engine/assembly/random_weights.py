"""Components with random weights, by their configuration: any device can be measured without a download.

Knows nothing of where configurations come from. Invariant: a seed gives the same weights on the same kind of device.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from darkroom.v1 import checkpoint_pb2, plan_pb2
from services.worker.engine.assembly.stage import DTYPES

RANDOM = checkpoint_pb2.CHECKPOINT_KIND_RANDOM
SEED = 0
# Small enough that dozens of layers stay finite in half precision.
SPREAD = 0.02


def make_random(kind: Any, folder: Path, part: plan_pb2.ComponentPlan, device: torch.device) -> torch.nn.Module:
    """Returns a component with weights drawn on the device, where full-size ones take seconds.

    Args:
        kind: class of diffusers or transformers.
        folder: holds config.json.
        part: whose compute type counts.
        device: where to draw.
    """
    before = torch.get_default_dtype()
    torch.set_default_dtype(DTYPES[part.compute_type])
    try:
        with torch.device(device):
            if hasattr(kind, "load_config"):  # diffusers
                module: torch.nn.Module = kind.from_config(kind.load_config(folder))
            else:
                module = kind(kind.config_class.from_pretrained(folder))
    finally:
        torch.set_default_dtype(before)
    generator = torch.Generator(device).manual_seed(SEED)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if parameter.ndim > 1:
                parameter.normal_(std=SPREAD, generator=generator)
            elif name.endswith("bias") or not torch.isfinite(parameter).all():
                parameter.zero_()
    return module.eval()
