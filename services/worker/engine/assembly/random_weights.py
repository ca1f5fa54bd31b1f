"""Components with random weights, and what stands in for the parts of a pipeline that only a repository has.

Knows nothing of the catalogue: a configuration comes from a folder, or with the plan. Invariant: a load that used a
stand-in says so.
"""

from __future__ import annotations

import inspect
import json
import typing
from pathlib import Path
from typing import Any

import torch
from transformers import Qwen2Tokenizer
from transformers.convert_slow_tokenizer import bytes_to_unicode

from darkroom.modeling.random_weights import build_random
from darkroom.modeling.skeleton import construct
from darkroom.v1 import checkpoint_pb2, device_pb2, plan_pb2
from services.worker.engine.assembly.stage import DTYPES, Assembly

RANDOM = checkpoint_pb2.CHECKPOINT_KIND_RANDOM
# What templates of pipelines write around a prompt.
SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>")
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
)
# Longest prompt of a stand-in where its text encoder names no limit: above what any pipeline passes on.
MAX_TOKENS = 2048


def make_random(kind: Any, folder: Path | None, part: plan_pb2.ComponentPlan, assembly: Assembly) -> torch.nn.Module:
    """Returns a component with random weights, drawn on the device.

    It stays there where the plan keeps it dense and resident; else it rests on the host, as one that was read would, so
    that quantising and offloading are measured as they are.

    Args:
        kind: class of diffusers or transformers.
        folder: holds config.json; None where the plan has the configuration.
        part: of the plan.
        assembly: whose plan and device count.
    """

    def make() -> torch.nn.Module:
        if folder is None:
            return construct(kind, json.loads(part.configuration))
        if hasattr(kind, "load_config"):  # diffusers
            return kind.from_config(kind.load_config(folder))  # type: ignore[no-any-return]
        return kind(kind.config_class.from_pretrained(folder))  # type: ignore[no-any-return]

    is_staying = part.scheme == device_pb2.SCHEME_NONE and assembly.plan.offload == plan_pb2.OFFLOAD_TIER_NONE
    rests_on = assembly.device if is_staying else torch.device("cpu")
    return build_random(make, DTYPES[part.compute_type], assembly.device, rests_on)


def make_pipeline(pipeline_class: Any, parts: dict[str, Any]) -> tuple[Any, list[str]]:
    """Returns a pipeline of parts alone, and what stands in for what they lack: tokenizers of bytes, schedulers and
    guiders as their classes have them by default."""
    made, hints = dict(parts), typing.get_type_hints(pipeline_class.__init__)
    for name, parameter in list(inspect.signature(pipeline_class.__init__).parameters.items())[1:]:
        if name in made or parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
            continue
        if name.startswith("tokenizer"):
            made[name] = byte_tokenizer(_longest_prompt(parts.get(name.replace("tokenizer", "text_encoder"))))
        elif name == "scheduler" or name.endswith("guider"):
            made[name] = _first_class(hints[name])()
        elif parameter.default is parameter.empty:
            made[name] = None
    stand_ins = [name for name in made if name not in parts and made[name] is not None]
    return pipeline_class(**made), stand_ins


def byte_tokenizer(model_max_length: int = 512) -> Qwen2Tokenizer:
    """One token a byte, with the special tokens of chat templates: 262 in all, fewer than any text encoder knows."""
    vocabulary = {letter: place for place, letter in enumerate(bytes_to_unicode().values())}  # type: ignore[no-untyped-call]
    vocabulary |= {token: len(vocabulary) + place for place, token in enumerate(SPECIAL_TOKENS)}
    tokenizer = Qwen2Tokenizer(
        vocab=vocabulary,
        merges=[],
        model_max_length=model_max_length,
        additional_special_tokens=list(SPECIAL_TOKENS[1:]),
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def _longest_prompt(text_encoder: Any) -> int:
    """CLIP has as many positions as its prompts may have tokens; others are bounded by the call."""
    is_clip = "CLIP" in type(text_encoder).__name__
    return int(text_encoder.config.max_position_embeddings) if is_clip else MAX_TOKENS


def _first_class(annotation: Any) -> Any:
    """The class that a parameter is annotated with; the first of several."""
    return next((kind for kind in typing.get_args(annotation) if isinstance(kind, type)), annotation)
