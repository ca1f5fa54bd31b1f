"""PlannerService over gRPC: decode, call, encode. Knows nothing of how a plan is made."""

from __future__ import annotations

import grpc

from darkroom.knowledge import Catalogue
from darkroom.v1 import planner_service_pb2, planner_service_pb2_grpc
from services.planner.planning import plan


class PlannerServicer(planner_service_pb2_grpc.PlannerServiceServicer):
    """Answers from one catalogue, loaded before the first call."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue

    async def Plan(
        self, request: planner_service_pb2.PlanRequest, context: grpc.aio.ServicerContext
    ) -> planner_service_pb2.PlanResponse:
        return plan(request, self._catalogue)
