"""Rules of families that can't be assembled or called the generic way, by the names that plans carry.

Knows nothing of the catalogue. Invariant: a rule that this file does not have was refused before anything was read.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer

from darkroom.v1 import generation_pb2, plan_pb2
from services.worker.plan_checks import HIDREAM, KREA

# Attributes that hold guidance as a component of the pipeline.
GUIDERS = ("guider", "ocr_guider")
# HiDream's side in latents, by its pipeline; larger pictures are moved to this area.
HIDREAM_LATENTS = 128


def extra_parts(plan: plan_pb2.Plan, folder: Path, sources: dict[str, Path]) -> dict[str, Any]:
    """Returns parts of the pipeline without weights that its own index does not give rightly.

    Args:
        plan: whose rules count.
        folder: of the pipeline.
        sources: folders of components that come from elsewhere.
    """
    parts: dict[str, Any] = {}
    if KREA in plan.assembly_hooks:
        # Its tokenizer_config.json lists extra tokens in a form that transformers 5 refuses.
        parts["tokenizer"] = AutoTokenizer.from_pretrained(
            folder / "tokenizer", local_files_only=True, use_fast=True, extra_special_tokens={}
        )
    if HIDREAM in plan.assembly_hooks and "text_encoder_4" in sources:
        parts["tokenizer_4"] = AutoTokenizer.from_pretrained(sources["text_encoder_4"], local_files_only=True)
    return parts


@contextlib.contextmanager
def called_by_rules(pipeline: Any, plan: plan_pb2.Plan, request: generation_pb2.GenerationRequest) -> Iterator[None]:
    """Sets what a call needs on the pipeline itself, for the block."""
    kept: dict[str, Any] = {}
    if plan.call.has_guider:
        for name in GUIDERS:
            if (guider := getattr(pipeline, name, None)) is not None:
                kept[name] = guider
                setattr(pipeline, name, guider.new(guidance_scale=request.guidance))
    if HIDREAM in plan.assembly_hooks:
        # It moves every picture to the area of its default size: so that is made the wanted one, up to its own.
        kept["default_sample_size"] = pipeline.default_sample_size
        side = math.sqrt(request.width * request.height) / pipeline.vae_scale_factor
        # A little more, so that rounding does not take a row of tokens away.
        pipeline.default_sample_size = min(side * (1 + 1e-9), HIDREAM_LATENTS)
    try:
        yield
    finally:
        for name, value in kept.items():
            setattr(pipeline, name, value)
