"""When a loaded plan serves as it is, and when it must be loaded anew."""

from __future__ import annotations

import pytest

from darkroom.knowledge import load_catalogue
from darkroom.rpc.errors import NoPlannerError
from darkroom.v1 import device_pb2, plan_pb2, planner_service_pb2, worker_pb2
from services.gateway.running.loading import Need, find_room, is_satisfied
from services.gateway.workers.seat import Seat
from services.planner.planning import plan as plan_for

CATALOGUE = load_catalogue()


def flux_plan(**inspection: int) -> plan_pb2.Plan:
    """FLUX.1-dev on an H200, as the planner answers it."""
    request = planner_service_pb2.PlanRequest(
        model="flux.1-dev", device=CATALOGUE.device("h200"), inspection=worker_pb2.Inspection(**inspection)
    )
    return plan_for(request, CATALOGUE).plan


def test_what_fetching_would_cost_does_not_matter() -> None:
    before = flux_plan(disk_free_bytes=1 << 40)
    after = flux_plan(present_bytes=5_000_000_000, disk_free_bytes=1 << 40)
    assert before.source.fetch_bytes != after.source.fetch_bytes
    assert is_satisfied(after, before)


def test_a_fallback_that_came_true_serves() -> None:
    plan = flux_plan()
    assert plan.fallbacks
    assert is_satisfied(plan, plan.fallbacks[0].plan)


def test_another_scheme_does_not_serve() -> None:
    plan, other = flux_plan(), flux_plan()
    other.components[0].scheme = device_pb2.SCHEME_INT8
    assert not is_satisfied(plan, other)


class PlannerHere:
    """The planner, asked without a wire; it counts, and may be away."""

    def __init__(self) -> None:
        self.num_asked = 0
        self.is_away = False

    async def ask(
        self, request: planner_service_pb2.PlanRequest, limit_s: float | None = None
    ) -> planner_service_pb2.PlanResponse:
        self.num_asked += 1
        if self.is_away:
            raise NoPlannerError("away")
        return plan_for(request, CATALOGUE)


def seat_with(device: str, **wishes: int) -> tuple[Seat, Need]:
    """A worker that has FLUX.1-dev loaded as planned for its device, and the need of a job of its default size."""
    preferences, status = plan_pb2.PlanPreferences(**wishes), worker_pb2.WorkerStatus(device=CATALOGUE.device(device))
    request = planner_service_pb2.PlanRequest(model="flux.1-dev", device=status.device, preferences=preferences)
    status.loaded.plan.CopyFrom(plan_for(request, CATALOGUE).plan)
    seat = Seat("127.0.0.1:1")
    seat.remember(status)
    workload = plan_pb2.Workload(width=1024, height=1024, batch_size=1, num_frames=1)
    return seat, Need("flux.1-dev", preferences, workload, seat.kind)


@pytest.mark.parametrize(
    ("device", "wishes", "most", "room"),
    [
        ("h200", {}, 4, 4),
        ("h200", {}, 1, 1),
        ("h200", {}, 64, 8),
        ("h200", {"step_cache": plan_pb2.STEP_CACHE_KIND_FIRST_BLOCK}, 4, 1),
    ],
)
async def test_a_loaded_plan_has_room_for_as_many_as_pipeline_setting_and_memory_allow(
    device: str, wishes: dict[str, int], most: int, room: int
) -> None:
    (seat, need), planner = seat_with(device, **wishes), PlannerHere()
    assert await find_room(seat, planner, need, most) == room  # type: ignore[arg-type]
    asked = planner.num_asked
    assert await find_room(seat, planner, need, most) == room  # type: ignore[arg-type]
    assert planner.num_asked == asked, "once a size is enough"


async def test_a_device_without_memory_to_spare_makes_one_at_a_time() -> None:
    seat, need = seat_with("h200")
    assert seat.status is not None
    memory = seat.status.device.memory
    memory.foreign_bytes = memory.total_bytes - seat.status.loaded.plan.memory.required_bytes * 5 // 4
    assert await find_room(seat, PlannerHere(), need, 4) == 1  # type: ignore[arg-type]


async def test_while_the_planner_is_away_jobs_run_alone_and_it_is_not_asked_again_at_once() -> None:
    (seat, need), planner = seat_with("h200"), PlannerHere()
    planner.is_away = True
    assert [await find_room(seat, planner, need, 4) for _ in range(3)] == [1, 1, 1]  # type: ignore[arg-type]
    assert planner.num_asked == 1
    assert seat.rooms == {}
