"""A planner that answers the same plan for everything: a real server, no knowledge.

The plan's fallback for running out of memory is the same plan with model offload; a model called "huge" never fits.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import grpc

from darkroom.rpc.handlers import add_servicer
from darkroom.v1 import device_pb2, plan_pb2, planner_service_pb2


def make_plan(model: str, workload: plan_pb2.Workload, preferences: plan_pb2.PlanPreferences) -> plan_pb2.Plan:
    """Returns the plan; the scheme that was wished for shows in it."""
    plan = plan_pb2.Plan(
        model=model,
        family="fake",
        engine=plan_pb2.ENGINE_DIFFUSERS,
        pipeline_class="FakePipeline",
        offload=plan_pb2.OFFLOAD_TIER_NONE,
        speed_mode=plan_pb2.SPEED_MODE_OFF,
        workload=workload,
    )
    plan.components.add(name="transformer", scheme=preferences.scheme or device_pb2.SCHEME_NONE)
    for phase in ("download", "assemble", "compile", "encode", "denoise", "decode"):
        getattr(plan.idle, phase).FromSeconds(2)
    fallback = plan_pb2.Plan()
    fallback.CopyFrom(plan)
    fallback.offload = plan_pb2.OFFLOAD_TIER_MODEL
    plan.fallbacks.add(trigger=plan_pb2.FALLBACK_TRIGGER_OUT_OF_MEMORY, plan=fallback)
    return plan


class FakePlanner:
    """Counts its questions."""

    def __init__(self) -> None:
        self.questions: list[planner_service_pb2.PlanRequest] = []
        self.never_fits = False
        self.plan_s = 0.0
        # Seconds that each caller had left.
        self.limits_s: list[float | None] = []

    async def Plan(
        self, request: planner_service_pb2.PlanRequest, context: grpc.aio.ServicerContext
    ) -> planner_service_pb2.PlanResponse:
        self.questions.append(request)
        self.limits_s.append(context.time_remaining())
        await asyncio.sleep(self.plan_s)
        answer = planner_service_pb2.PlanResponse()
        if self.never_fits:
            candidate = answer.no_fit.candidates.add(scheme=device_pb2.SCHEME_NONE)
            candidate.reason.code, candidate.reason.sentence = "TOO_LARGE", "needs 2 bytes of 1"
            return answer
        workload = request.workload
        if not request.HasField("workload"):
            workload = plan_pb2.Workload(width=128, height=128, batch_size=1, num_frames=1)
        answer.plan.CopyFrom(make_plan(request.model, workload, request.preferences))
        return answer


@contextlib.asynccontextmanager
async def serve_planner(planner: FakePlanner, port: int = 0) -> AsyncIterator[str]:
    """Serves on loopback; yields the address."""
    server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
    add_servicer(server, planner, planner_service_pb2.DESCRIPTOR.services_by_name["PlannerService"])
    port = server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(0)
