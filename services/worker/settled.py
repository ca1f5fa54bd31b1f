"""Whether a settled reading of the device still agrees with a plan, and what is executed where it does not.

Knows nothing of engines; the arithmetic is the planner's, and comes with the plan. Invariant: a plan that is handed on
needs no more than there is, or fails with the numbers.
"""

from __future__ import annotations

from darkroom.rpc.errors import OutOfMemoryError
from darkroom.v1 import device_pb2, plan_pb2


def contradiction(plan: plan_pb2.Plan, device: device_pb2.Device) -> str:
    """Says why `plan` does not fit the settled reading by its own arithmetic; empty where it does.

    The limit is the planner's: (total - foreign - reserve) * fill limit, with the settled foreign bytes.
    """
    need, reading = plan.memory, device.memory
    if not need.required_bytes or not reading.total_bytes:
        return ""
    budget = reading.total_bytes - reading.foreign_bytes - need.reserve_bytes
    limit = int(budget * (need.fill_limit or 1.0))
    if need.required_bytes <= limit:
        return ""
    return (
        f"{need.required_bytes} bytes are required and {limit} may be used: {reading.free_bytes} are free of "
        f"{reading.total_bytes}, {reading.foreign_bytes} held by others"
    )


def plan_that_fits(plan: plan_pb2.Plan, device: device_pb2.Device) -> plan_pb2.Plan:
    """Returns the plan, or its first out-of-memory fallback that the settled reading has room for at all.

    Raises:
        OutOfMemoryError: none has, with the numbers.
    """
    reading = device.memory
    available = reading.total_bytes - reading.foreign_bytes
    for candidate in (plan, *fallbacks(plan, plan_pb2.FALLBACK_TRIGGER_OUT_OF_MEMORY)):
        if not reading.total_bytes or candidate.memory.required_bytes <= available:
            return candidate
    raise OutOfMemoryError(
        f"{plan.model} needs {plan.memory.required_bytes} bytes and {available} are available, "
        f"{reading.foreign_bytes} being held by others; no fallback of the plan needs less than that",
        needed_bytes=plan.memory.required_bytes,
        available_bytes=available,
        foreign_bytes=reading.foreign_bytes,
    )


def fallbacks(plan: plan_pb2.Plan, trigger: int) -> list[plan_pb2.Plan]:
    """Plans that follow a failure of this kind, in order."""
    return [item.plan for item in plan.fallbacks if item.trigger == trigger]
