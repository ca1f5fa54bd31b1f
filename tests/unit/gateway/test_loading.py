"""When a loaded plan serves as it is, and when it must be loaded anew."""

from __future__ import annotations

from darkroom.knowledge import load_catalogue
from darkroom.v1 import device_pb2, plan_pb2, planner_service_pb2, worker_pb2
from services.gateway.running.loading import is_satisfied
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
