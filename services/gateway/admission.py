"""Whether a request may be queued, and with which values: the model's defaults and limits, field by field.

Knows nothing of families, workers or Redis: all that it checks against is in the Model message. Invariant: an admitted
request has every field filled in and could be run, and its pictures are described, without their files; a refused one
names every wrong field.
"""

from __future__ import annotations

import hashlib
import math
import re
import secrets
from collections.abc import Callable, Iterable
from typing import Any

from darkroom.images import count_violations, describe_image, image_violations, size_after
from darkroom.rpc.errors import InvalidRequestError
from darkroom.v1 import device_pb2, generation_pb2, job_pb2, model_pb2, plan_pb2
from services.gateway.store.vocabulary import DEFAULT_TENANT

# A drawn seed survives a trip through JSON, whose numbers are doubles.
DRAWN_SEED_BITS = 53
TENANT_KEY = "x-darkroom-tenant"
TENANT = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")
MAX_DEADLINE_S = 365 * 86400

FindModel = Callable[[str], model_pb2.Model]


def admit(request: generation_pb2.GenerationRequest, find_model: FindModel) -> generation_pb2.GenerationRequest:
    """Returns the request with every field filled in: the model's own name, defaults, a drawn seed, what pictures are.

    Where it brings pictures and names neither width nor height, its size has the first one's proportions.

    Raises:
        InvalidRequestError: names every wrong field, `request.width` and so on.
        UnknownModelError: no model is called so.
    """
    if not request.model:
        raise InvalidRequestError({"request.model": "is empty; `darkroom models` lists the names"})
    model = find_model(request.model)
    violations = count_violations(len(request.images), model) or image_violations(request.images, "request.images")
    full = _filled(request, model, can_describe=not violations)
    violations |= {
        **_text_violations(full, model.limits),
        **_size_violations(full, model),
        **_number_violations(full, model),
        **_enum_violations(full),
    }
    if violations:
        raise InvalidRequestError(violations, model=model.name, **_limit_facts(model.limits))
    return full


def check_terms(terms: job_pb2.JobTerms) -> None:
    """Raises InvalidRequestError unless the terms can be kept."""
    if terms.priority not in job_pb2.JobPriority.values():
        known = ", ".join(job_pb2.JobPriority.keys()[1:])
        raise InvalidRequestError({"terms.priority": f"is {terms.priority}; known are {known}"})
    if not terms.HasField("deadline"):
        return
    seconds = terms.deadline.seconds + terms.deadline.nanos / 1e9
    if not 0.001 <= seconds <= MAX_DEADLINE_S:
        text = f"is {seconds:g} s; send 0.001 to {MAX_DEADLINE_S} s from now, or leave it out"
        raise InvalidRequestError({"terms.deadline": text})


def find_tenant(metadata: Iterable[tuple[str, str | bytes]]) -> str:
    """Returns whose call this is, by its metadata. Raises InvalidRequestError for what is no name."""
    name = next((value for key, value in metadata if key == TENANT_KEY), DEFAULT_TENANT)
    if not isinstance(name, str) or not TENANT.fullmatch(name):
        text = f"is {name[:64]!r}; use a to z, 0 to 9, '.', '_' and '-', at most 63 characters"
        raise InvalidRequestError({TENANT_KEY: text})
    return name


def kind_of(request: generation_pb2.GenerationRequest) -> str:
    """Returns what jobs share that run on the same loaded plan: model and preferences, rarer ones as a digest."""
    wishes = request.preferences
    rest = plan_pb2.PlanPreferences()
    rest.CopyFrom(wishes)
    for name in ("scheme", "memory_mode", "speed_mode"):
        rest.ClearField(name)  # type: ignore[arg-type]
    said = rest.SerializeToString(deterministic=True)
    digest = f".{hashlib.sha256(said).hexdigest()[:12]}" if said else ""
    return f"{request.model}/{wishes.scheme}.{wishes.memory_mode}.{wishes.speed_mode}{digest}"


def size_name(width: int, height: int) -> str:
    """Returns how a size is written in shapes: 1024x768."""
    return f"{width}x{height}"


def shape_of(request: generation_pb2.GenerationRequest) -> str:
    """Returns what jobs share that may run as one batch: size, steps, guidance, and every wish for the plan.

    Prompts, seeds and file formats are each job's own. Begins with the size. Empty for a job that runs alone, as those
    that bring pictures do: pipelines take one set of them for all that a call makes.
    """
    if request.images:
        return ""
    wishes = hashlib.sha256(request.preferences.SerializeToString(deterministic=True)).hexdigest()[:16]
    size = size_name(request.width, request.height)
    return f"{size} {request.steps} {request.guidance!r} {wishes} {request.model}"


def bare(
    request: generation_pb2.GenerationRequest, full: generation_pb2.GenerationRequest
) -> generation_pb2.GenerationRequest:
    """Returns a request as it came, but for its pictures, which are described as in `full`."""
    if not request.images:
        return request
    described = generation_pb2.GenerationRequest()
    described.CopyFrom(request)
    described.ClearField("images")
    described.images.extend(full.images)
    return described


def _filled(
    request: generation_pb2.GenerationRequest, model: model_pb2.Model, *, can_describe: bool
) -> generation_pb2.GenerationRequest:
    """Returns the request with what it leaves out.

    Args:
        can_describe: its pictures have passed; otherwise they are left out.
    """
    full = generation_pb2.GenerationRequest()
    full.CopyFrom(request)
    full.model = model.name
    defaults = model.defaults
    if request.images:
        full.ClearField("images")
        full.images.extend(describe_image(image) for image in request.images if can_describe)
    if full.images and not full.HasField("width") and not full.HasField("height"):
        full.width, full.height = size_after(full.images[0], defaults, model.limits)
    if not full.HasField("width"):
        full.width = defaults.width
    if not full.HasField("height"):
        full.height = defaults.height
    if not full.HasField("steps"):
        full.steps = defaults.steps
    if not full.HasField("guidance"):
        full.guidance = defaults.guidance
    if not full.HasField("negative_prompt"):
        full.negative_prompt = defaults.negative_prompt if model.limits.uses_negative_prompt else ""
    if not full.HasField("seed"):
        full.seed = secrets.randbits(DRAWN_SEED_BITS)
    if full.format == generation_pb2.OUTPUT_FORMAT_UNSPECIFIED:
        full.format = generation_pb2.OUTPUT_FORMAT_PNG
    return full


def _text_violations(request: generation_pb2.GenerationRequest, limits: model_pb2.GenerationLimits) -> dict[str, str]:
    found = {}
    for name in ("prompt", "negative_prompt"):
        text = getattr(request, name)
        if "\0" in text:
            found[f"request.{name}"] = "holds a NUL character; remove it"
        elif len(text) > limits.max_prompt_characters:
            found[f"request.{name}"] = f"has {len(text)} characters; at most {limits.max_prompt_characters} are read"
    if not request.prompt.strip():
        found["request.prompt"] = "is empty; say what to show"
    if request.negative_prompt and not limits.uses_negative_prompt:
        found.setdefault("request.negative_prompt", "is not used by this model; leave it out")
    return found


def _size_violations(request: generation_pb2.GenerationRequest, model: model_pb2.Model) -> dict[str, str]:
    limits = model.limits
    found = {}
    for name in ("width", "height"):
        side = getattr(request, name)
        multiple = max(1, limits.side_multiple)
        rule = f"{limits.min_side} to {limits.max_side} pixels in multiples of {multiple}"
        if not limits.min_side <= side <= limits.max_side:
            found[f"request.{name}"] = f"is {side}; {model.name} takes {rule}"
        elif side % multiple:
            near = min(max(round(side / multiple) * multiple, limits.min_side), limits.max_side)
            found[f"request.{name}"] = f"is {side}; {model.name} takes {rule}, such as {near}"
    return found


def _number_violations(request: generation_pb2.GenerationRequest, model: model_pb2.Model) -> dict[str, str]:
    limits = model.limits
    found = {}
    if not 1 <= request.steps <= limits.max_steps:
        found["request.steps"] = f"is {request.steps}; {model.name} takes 1 to {limits.max_steps}"
    if not (math.isfinite(request.guidance) and 0 <= request.guidance <= limits.max_guidance):
        found["request.guidance"] = f"is {request.guidance:g}; {model.name} takes 0 to {limits.max_guidance:g}"
    return found


def _enum_violations(request: generation_pb2.GenerationRequest) -> dict[str, str]:
    wishes = request.preferences
    checks: tuple[tuple[str, int, Any], ...] = (
        ("format", request.format, generation_pb2.OutputFormat),
        ("preferences.scheme", wishes.scheme, device_pb2.Scheme),
        ("preferences.memory_mode", wishes.memory_mode, plan_pb2.MemoryMode),
        ("preferences.speed_mode", wishes.speed_mode, plan_pb2.SpeedMode),
    )
    return {
        f"request.{name}": f"is {value}; known are {', '.join(kind.keys()[1:])}"
        for name, value, kind in checks
        if value not in kind.values()
    }


def check_preferences(wishes: plan_pb2.PlanPreferences) -> None:
    """Raises InvalidRequestError for values that no enum knows."""
    found = _enum_violations(generation_pb2.GenerationRequest(preferences=wishes))
    if found:
        raise InvalidRequestError({name.removeprefix("request."): problem for name, problem in found.items()})


def _limit_facts(limits: model_pb2.GenerationLimits) -> dict[str, Any]:
    return {
        "min_side_pixels": limits.min_side,
        "max_side_pixels": limits.max_side,
        "side_multiple_pixels": limits.side_multiple,
        "max_steps": limits.max_steps,
        "max_guidance": limits.max_guidance,
        "max_prompt_characters": limits.max_prompt_characters,
    }
