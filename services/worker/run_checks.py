"""Whether a run can be made at all: its items, and what the loaded pipeline is called with.

Knows nothing of devices. Invariant: a check that fails has changed nothing.
"""

from __future__ import annotations

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
    if len({_shape(item) for item in items}) > 1:
        problems["items.request"] = "items of one run share size, steps and guidance"
    if problems:
        raise InvalidRequestError(problems)


def check_call(plan: plan_pb2.Plan) -> None:
    """Raises InvalidRequestError if requests can't bring what the pipeline is called with."""
    if plan.call.needs_image:
        text = f"{plan.model} changes a picture that the request brings, and requests can't bring one yet"
        raise InvalidRequestError({"items.request": text})


def _shape(item: worker_pb2.RunItem) -> tuple[float, ...]:
    request = item.request
    return (request.width, request.height, request.steps, request.guidance)
