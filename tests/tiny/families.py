"""Every image family of the catalogue that needs no picture, tiny: how to build its like, and one pipeline of each."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from darkroom.v1 import generation_pb2, plan_pb2
from services.worker.engine.assembly.rules import called_by_rules
from services.worker.engine.generation import call_arguments
from tests.tiny import flux, flux_2, hidream, hunyuanimage, krea_2, lumina_2, qwen_image, z_image
from tests.tiny.parts import fill_empty, plan_of

# Model of the catalogue, how to build its like, and arguments that a tiny text encoder needs otherwise.
FAMILIES: dict[str, tuple[Callable[[], Any], dict[str, Any]]] = {
    "flux.1-schnell": (flux.build, {"max_sequence_length": flux.MAX_TOKENS}),
    "z-image": (z_image.build, {"max_sequence_length": 64}),
    "qwen-image": (qwen_image.build, {}),
    "krea-2-raw": (krea_2.build, {}),
    "lumina-image-2.0": (lumina_2.build, {}),
    "flux.2-klein-base-4b": (flux_2.build_klein, {"max_sequence_length": 64}),
    "flux.2-dev": (flux_2.build_dev, {}),
    "hunyuanimage-2.1": (hunyuanimage.build, {}),
    "hidream-i1-full": (hidream.build, {"max_sequence_length": 32}),
}


@functools.cache
def family(model: str) -> tuple[Any, plan_pb2.Plan]:
    """(pipeline, plan) of a family, in this process: shared, so leave it as it was."""
    build, arguments = FAMILIES[model]
    torch.manual_seed(0)
    pipeline, plan = build(), plan_of(model, Path("none"), **arguments)
    for part in plan.components:
        fill_empty(getattr(pipeline, part.name).eval())
    pipeline.set_progress_bar_config(disable=True)
    return pipeline, plan


def latents_of(pipeline: Any, plan: plan_pb2.Plan, prompt: str, **changes: Any) -> torch.Tensor:
    """Calls a pipeline by its family's recipe and returns the latents."""
    fields = {"width": 64, "height": 64, "steps": 1, "guidance": 3.0, "negative_prompt": "grey", **changes}
    request = generation_pb2.GenerationRequest(prompt=prompt, seed=0, **fields)
    arguments, _ = call_arguments(pipeline, plan.call, [request])
    with torch.inference_mode(), called_by_rules(pipeline, plan, request):
        made: torch.Tensor = pipeline(
            **arguments, generator=torch.Generator().manual_seed(0), output_type="latent"
        ).images
    return made
