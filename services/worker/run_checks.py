"""Whether a run can be made at all: its items, and what the loaded pipeline is called with.

Knows nothing of devices, and decodes no picture. Invariant: a check that fails has changed nothing.
"""

from __future__ import annotations

from darkroom.images import image_violations
from darkroom.rpc.errors import InvalidRequestError
from darkroom.v1 import plan_pb2, worker_pb2


def check_items(items: list[worker_pb2.RunItem]) -> None:
    """Raises InvalidRequestError unless there are items, named apart, complete, and of one size, steps and guidance."""
    problems: dict[str, str] = {}
    if not items:
        problems["items"] = "at least one is needed"
    if len({item.job_id for item in items}) != len(items) or any(not item.job_id for item in items):
        problems["items.job_id"] = "each needs a name of its own"
    for place, item in enumerate(items):
        for field in ("width", "height", "steps", "guidance", "seed"):
            if not item.request.HasField(field):  # type: ignore[arg-type]
                problems[f"items[{place}].request.{field}"] = "a run's requests have every field filled in"
        problems |= image_violations(item.request.images, f"items[{place}].request.images")
    if len({_shape(item) for item in items}) > 1:
        problems["items.request"] = "items of one run share size, steps and guidance"
    if problems:
        raise InvalidRequestError(problems)


def check_call(plan: plan_pb2.Plan, items: list[worker_pb2.RunItem]) -> None:
    """Raises InvalidRequestError unless every item brings as many pictures as the pipeline is called with."""
    most, least = plan.call.max_images, int(plan.call.needs_image)
    problems = {}
    for place, item in enumerate(items):
        count = len(item.request.images)
        if least <= count <= most:
            continue
        problems[f"items[{place}].request.images"] = _count_problem(plan.model, count, least, most)
    if problems:
        raise InvalidRequestError(problems)


def _count_problem(model: str, count: int, least: int, most: int) -> str:
    if least > most:
        return f"can't be brought to {model} yet, which starts from one"
    if not most:
        return f"are {count}; {model} paints from words alone and takes none"
    if not count:
        return f"are missing; {model} changes pictures that the request brings, {least} to {most} of them"
    return f"are {count}; {model} takes at most {most}"


def _shape(item: worker_pb2.RunItem) -> tuple[float, ...]:
    request = item.request
    return (request.width, request.height, request.steps, request.guidance)
