"""A settled reading against a plan: whether it agrees, and what is executed where it does not."""

from __future__ import annotations

import pytest

from darkroom.rpc.errors import OutOfMemoryError
from darkroom.v1 import device_pb2, plan_pb2
from services.worker.settled import contradiction, plan_that_fits
from tests.engines.worker_server import rehearsal_plan

GIB = 2**30


def device(free: int, foreign: int, total: int = 24 * GIB) -> device_pb2.Device:
    memory = device_pb2.DeviceMemory(total_bytes=total, free_bytes=free, foreign_bytes=foreign)
    return device_pb2.Device(memory=memory)


def test_a_reading_contradicts_a_plan_by_the_planners_own_arithmetic() -> None:
    plan = rehearsal_plan()
    plan.memory.CopyFrom(plan_pb2.MemoryBudget(required_bytes=15 * GIB, reserve_bytes=GIB, fill_limit=0.85))
    # (24 - 5 - 1) * 0.85 = 15.3 GiB may be used; with 6 held by others it is 14.45.
    assert contradiction(plan, device(free=19 * GIB, foreign=5 * GIB)) == ""
    assert "6442450944 held by others" in contradiction(plan, device(free=18 * GIB, foreign=6 * GIB))


def test_a_replanned_load_takes_what_fits_at_all() -> None:
    plan = rehearsal_plan(weight_bytes=20 * GIB)
    small = rehearsal_plan("small", weight_bytes=4 * GIB)
    plan.fallbacks.add(trigger=plan_pb2.FALLBACK_TRIGGER_KERNEL_FAILED, plan=small)
    assert plan_that_fits(plan, device(free=21 * GIB, foreign=3 * GIB)) is plan
    with pytest.raises(OutOfMemoryError) as caught:
        plan_that_fits(plan, device(free=12 * GIB, foreign=12 * GIB))
    assert caught.value.facts["available_bytes"] == str(12 * GIB)
    plan.fallbacks.add(trigger=plan_pb2.FALLBACK_TRIGGER_OUT_OF_MEMORY, plan=small)
    assert plan_that_fits(plan, device(free=12 * GIB, foreign=12 * GIB)).model == "small"
