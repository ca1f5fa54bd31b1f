"""What may be asked of a picture, as keyword arguments, and the message that they become.

Knows nothing of models' limits: the gateway checks them and names every wrong field.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Literal, TypedDict

from darkroom.client._images import ImageSource, read_images
from darkroom.rpc.errors import InvalidRequestError
from darkroom.v1 import generation_pb2, job_pb2, plan_pb2

DEFAULT_MODEL = "emoji"
MAX_SEED = 2**64 - 1
MAX_COUNT = 1000
# A seed that is drawn here stays below 2**53, so that JSON and JavaScript carry it unharmed.
RANDOM_SEED_BITS = 53
# Fields that are said of the job, not of the picture.
TERMS = ("priority", "deadline_s")
PRIORITIES = {
    "low": job_pb2.JOB_PRIORITY_LOW,
    "normal": job_pb2.JOB_PRIORITY_NORMAL,
    "high": job_pb2.JOB_PRIORITY_HIGH,
}
FORMATS = {
    "png": generation_pb2.OUTPUT_FORMAT_PNG,
    "jpeg": generation_pb2.OUTPUT_FORMAT_JPEG,
    "webp": generation_pb2.OUTPUT_FORMAT_WEBP,
}


class RequestFields(TypedDict, total=False):
    """Everything beside the prompt. A field that is left out, or None, takes the model's default."""

    model: str
    """Name or alias; "emoji" where nothing is said."""
    negative_prompt: str | None
    """What to steer away from."""
    width: int | None
    """Pixels."""
    height: int | None
    """Pixels."""
    steps: int | None
    """Denoising steps."""
    guidance: float | None
    """Guidance scale in the model's own convention."""
    seed: int | None
    """0 to 2**64 - 1; None draws one, which the picture tells."""
    format: Literal["png", "jpeg", "webp"]
    """File format; PNG where nothing is said."""
    allows_constant: bool
    """True returns a picture of one exact colour instead of failing on it."""
    images: ImageSource | Sequence[ImageSource] | None
    """Pictures that the prompt speaks of: paths, bytes of files, or Pillow images; a model's limits tell how many."""
    preferences: plan_pb2.PlanPreferences | None
    """How the model should be planned, if this request has to load it."""
    priority: Literal["low", "normal", "high"] | None
    """How soon its turn comes among jobs that wait; normal where nothing is said."""
    deadline_s: float | None
    """Longest time from acceptance to the end; a job that is not done by then fails with DeadlineError."""


def build_request(prompt: str, fields: RequestFields) -> generation_pb2.GenerationRequest:
    """Returns the message; the fields that are terms are not in it.

    Raises:
        InvalidRequestError: a field does not fit its type, or is unknown.
    """
    given = {name: value for name, value in fields.items() if value is not None}
    unknown = set(given) - set(RequestFields.__annotations__)
    if unknown:
        known = ", ".join(RequestFields.__annotations__)
        raise InvalidRequestError({f"request.{name}": f"is no field; there are {known}" for name in sorted(unknown)})
    request = generation_pb2.GenerationRequest(model=DEFAULT_MODEL)
    _assign(request, "prompt", prompt)
    for name, value in given.items():
        if name not in TERMS:
            _assign(request, name, value)
    return request


def build_terms(fields: RequestFields) -> job_pb2.JobTerms | None:
    """Returns what is wanted of the job beside the picture; None where nothing is.

    Raises:
        InvalidRequestError: a value does not fit.
    """
    deadline_s, priority = fields.get("deadline_s"), fields.get("priority")
    if deadline_s is None and priority is None:
        return None
    terms = job_pb2.JobTerms()
    if priority is not None:
        if priority not in PRIORITIES:
            raise InvalidRequestError({"terms.priority": f"{priority!r} is none of {', '.join(PRIORITIES)}"})
        terms.priority = PRIORITIES[priority]
    if deadline_s is not None:
        try:
            terms.deadline.FromNanoseconds(int(deadline_s * 1e9))
        except (TypeError, ValueError, OverflowError) as wrong:
            raise InvalidRequestError({"terms.deadline": f"{deadline_s!r} does not fit: {wrong}"}) from None
    return terms


def spread_seeds(seed: int | None, count: int) -> list[int]:
    """Returns `count` consecutive seeds from `seed`, or from a drawn one.

    Raises:
        InvalidRequestError: count is not 1 to 1000, or the last seed would pass 2**64 - 1.
    """
    if not 1 <= count <= MAX_COUNT:
        raise InvalidRequestError({"count": f"{count} is not between 1 and {MAX_COUNT}"})
    first = random.getrandbits(RANDOM_SEED_BITS) if seed is None else seed
    if not 0 <= first <= MAX_SEED - (count - 1):
        limit = MAX_SEED - (count - 1)
        raise InvalidRequestError({"request.seed": f"{first} is not between 0 and {limit} for {count} pictures"})
    return [first + index for index in range(count)]


def _assign(request: generation_pb2.GenerationRequest, name: str, value: object) -> None:
    try:
        if name == "format":
            request.format = FORMATS[str(value).lower()]
        elif name == "images":
            request.images.extend(read_images(value))  # type: ignore[arg-type]
        elif name == "preferences":
            request.preferences.CopyFrom(value)  # type: ignore[arg-type]
        else:
            setattr(request, name, value)
    except (TypeError, ValueError, KeyError, UnicodeError) as wrong:
        expected = f"one of {', '.join(FORMATS)}" if name == "format" else str(wrong)
        raise InvalidRequestError({f"request.{name}": f"{value!r} does not fit: {expected}"}) from None
