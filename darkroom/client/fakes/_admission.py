"""What the fake gateway accepts: the same rules as the real one, read from the model's message.

Invariant: an accepted request has every field filled in.
"""

from __future__ import annotations

import random
from collections.abc import Iterable

from darkroom.client._request import RANDOM_SEED_BITS
from darkroom.images import count_violations, describe_image, image_violations, size_after
from darkroom.rpc.errors import InvalidRequestError, UnknownModelError
from darkroom.v1 import generation_pb2, model_pb2


def emoji_model() -> model_pb2.Model:
    """Returns the one model that a fake gateway has where nothing else is said."""
    return model_pb2.Model(
        name="emoji",
        family="flux.1",
        aliases=["text-to-emoji"],
        summary="A fake of the bundled demo model.",
        media=model_pb2.MEDIA_KIND_IMAGE,
        defaults=model_pb2.GenerationDefaults(width=128, height=128, steps=20, guidance=3.0),
        limits=model_pb2.GenerationLimits(
            min_side=64,
            max_side=256,
            side_multiple=16,
            max_steps=100,
            max_guidance=30.0,
            max_prompt_characters=2000,
            max_prompt_tokens=32,
            uses_negative_prompt=True,
        ),
        license="MIT",
        source="bundled:emoji",
    )


def find_model(models: Iterable[model_pb2.Model], name: str) -> model_pb2.Model:
    """Returns a model by name or alias, or raises UnknownModelError."""
    known = list(models)
    for model in known:
        if name == model.name or name in model.aliases:
            return model
    raise UnknownModelError(f"there is no model {name!r}; there are {', '.join(model.name for model in known)}")


def admit(request: generation_pb2.GenerationRequest, model: model_pb2.Model) -> generation_pb2.GenerationRequest:
    """Returns a copy with defaults filled in and a seed drawn.

    Raises:
        InvalidRequestError: names every field that is outside the model's limits.
    """
    violations = count_violations(len(request.images), model) or image_violations(request.images, "request.images")
    admitted = generation_pb2.GenerationRequest()
    admitted.CopyFrom(request)
    admitted.ClearField("images")
    admitted.model = model.name
    if request.images and not violations:
        admitted.images.extend(describe_image(image) for image in request.images)
        if not request.HasField("width") and not request.HasField("height"):
            admitted.width, admitted.height = size_after(admitted.images[0], model.defaults, model.limits)
    for field in ("negative_prompt", "width", "height", "steps", "guidance"):
        if not admitted.HasField(field):
            setattr(admitted, field, getattr(model.defaults, field))
    if not request.HasField("seed"):
        admitted.seed = random.getrandbits(RANDOM_SEED_BITS)
    admitted.format = request.format or generation_pb2.OUTPUT_FORMAT_PNG
    violations |= _violations(admitted, model.limits)
    if violations:
        raise InvalidRequestError(violations)
    return admitted


def _violations(request: generation_pb2.GenerationRequest, limits: model_pb2.GenerationLimits) -> dict[str, str]:
    found = {}
    for side in ("width", "height"):
        pixels = getattr(request, side)
        if not limits.min_side <= pixels <= limits.max_side or pixels % limits.side_multiple:
            lattice = f"a multiple of {limits.side_multiple} from {limits.min_side} to {limits.max_side} pixels"
            found[f"request.{side}"] = f"{pixels} is not {lattice}"
    if not 1 <= request.steps <= limits.max_steps:
        found["request.steps"] = f"{request.steps} is not between 1 and {limits.max_steps}"
    if not 0 <= request.guidance <= limits.max_guidance:
        found["request.guidance"] = f"{request.guidance} is not between 0 and {limits.max_guidance}"
    if not request.prompt.strip():
        found["request.prompt"] = "is empty; say what to show"
    elif len(request.prompt) > limits.max_prompt_characters:
        found["request.prompt"] = f"has {len(request.prompt)} of at most {limits.max_prompt_characters} characters"
    return found
