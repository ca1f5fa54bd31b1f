"""The real planner, whose plans call an engine hung after seconds, not minutes: `python -m tests.chaos.planner`."""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator

import grpc

from darkroom.knowledge import load_catalogue
from darkroom.rpc.serving import Application, Health, run_service
from darkroom.rpc.settings import load_settings
from darkroom.v1 import plan_pb2, planner_service_pb2
from services.planner.config import PlannerSettings
from services.planner.servicer import PlannerServicer

SERVICE = planner_service_pb2.DESCRIPTOR.services_by_name["PlannerService"]
IDLE_VARIABLE = "CHAOS_IDLE_S"


class ImpatientPlanner(PlannerServicer):
    """Plans as the planner does, and shortens the idle budgets."""

    async def Plan(
        self, request: planner_service_pb2.PlanRequest, context: grpc.aio.ServicerContext
    ) -> planner_service_pb2.PlanResponse:
        answer = await super().Plan(request, context)
        if answer.HasField("plan"):
            shorten(answer.plan, float(os.environ.get(IDLE_VARIABLE, "3")))
        return answer


def shorten(plan: plan_pb2.Plan, idle_s: float) -> None:
    """Sets every idle budget of the plan and of its fallbacks."""
    for phase in ("download", "assemble", "compile", "encode", "denoise", "decode"):
        getattr(plan.idle, phase).FromNanoseconds(int(idle_s * 1e9))
    for fallback in plan.fallbacks:
        shorten(fallback.plan, idle_s)


def main() -> None:
    """Serves until a signal arrives."""
    settings = load_settings(PlannerSettings)
    servicer = ImpatientPlanner(load_catalogue(settings.catalog_paths))

    @contextlib.asynccontextmanager
    async def lifespan(health: Health) -> AsyncIterator[Application]:
        await health.set_ready(True)
        yield Application([(SERVICE, servicer)])

    run_service("planner", settings.planner_listen, settings, [SERVICE.full_name], lifespan)


if __name__ == "__main__":
    main()
