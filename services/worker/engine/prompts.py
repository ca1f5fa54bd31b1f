"""How much of a prompt a pipeline reads: truncation is told, never silent.

Invariant: counts are made with the pipeline's own tokenizers, special tokens included.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from typing import Any

from darkroom.v1 import generation_pb2


def prompt_engagement(pipeline: Any, prompt: str, arguments: Mapping[str, Any]) -> generation_pb2.Engagement:
    """Returns knob "prompt_tokens": tokens of the prompt, the limit, tokens that are read.

    The tokenizer with the widest limit speaks for the prompt; a narrower one that cuts it is named in the reason.

    Args:
        pipeline: with attributes `tokenizer`, `tokenizer_2`, and so on.
        prompt: the text.
        arguments: of the call; `max_sequence_length` bounds all but CLIP.
    """
    counts = [
        (name, _count(tokenizer, prompt), _limit(pipeline, tokenizer, arguments))
        for name, tokenizer in tokenizers(pipeline)
    ]
    if not counts:
        return generation_pb2.Engagement(knob="prompt_tokens", reason="the pipeline has no tokenizer")
    _, count, limit = max(counts, key=lambda item: item[2])
    cut = [f"{name} reads {limit} of {count} tokens" for name, count, limit in counts if count > limit]
    return generation_pb2.Engagement(
        knob="prompt_tokens",
        requested=str(count),
        resolved=str(limit),
        engaged=str(min(count, limit)),
        reason=f"the prompt is cut: {'; '.join(cut)}" if cut else "",
    )


def tokenizers(pipeline: Any) -> Iterator[tuple[str, Any]]:
    """Yields the pipeline's tokenizers with their attribute names."""
    for name, component in sorted(pipeline.components.items()):
        if name.startswith("tokenizer") and callable(component):
            yield name, component


def _count(tokenizer: Any, prompt: str) -> int:
    return len(tokenizer(prompt, truncation=False).input_ids)


def _limit(pipeline: Any, tokenizer: Any, arguments: Mapping[str, Any]) -> int:
    """Tokens that the pipeline passes on: CLIP's own 77, else the call's max_sequence_length."""
    if "CLIP" in type(tokenizer).__name__:
        return int(tokenizer.model_max_length)
    default = inspect.signature(type(pipeline).__call__).parameters.get("max_sequence_length")
    limit = arguments.get("max_sequence_length", default.default if default is not None else None)
    return int(limit if isinstance(limit, int) else tokenizer.model_max_length)
