"""A planner started for one call, for machines without a gateway: planning needs nothing but the planner.

Knows of the planner only its contract. Invariant: the planner has ended when the call returns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from darkroom.cli.up import services_are_here

if TYPE_CHECKING:
    from darkroom.rpc.errors import DarkroomError
    from darkroom.v1 import model_service_pb2, planner_service_pb2

CALL_S = 20.0


async def plan_without_gateway(
    requests: Sequence[model_service_pb2.PlanModelRequest], silence: DarkroomError
) -> list[model_service_pb2.PlanModelResponse]:
    """Returns what a gateway would have answered, request by request.

    Raises:
        DarkroomError: the planner's; or `silence`, the gateway's, where no planner can be started.
    """
    import grpc

    from darkroom.rpc.channels import open_channel
    from darkroom.rpc.child_service import running_service
    from darkroom.rpc.status import from_rpc_error
    from darkroom.v1 import planner_service_pb2_grpc

    if not services_are_here():
        raise silence
    starting = running_service("services.planner", "DARKROOM_PLANNER_LISTEN", silence)
    async with starting as planner, open_channel(planner.address) as channel:
        stub = planner_service_pb2_grpc.PlannerServiceStub(channel)
        try:
            return [_as_gateway(request, await stub.Plan(_ask(request), timeout=CALL_S)) for request in requests]
        except grpc.aio.AioRpcError as failure:
            raise from_rpc_error(failure) from failure


def _ask(request: model_service_pb2.PlanModelRequest) -> planner_service_pb2.PlanRequest:
    from darkroom.v1 import planner_service_pb2

    return planner_service_pb2.PlanRequest(
        model=request.model,
        device=request.device,
        preferences=request.preferences,
        workload=request.workload if request.HasField("workload") else None,
    )


def _as_gateway(
    request: model_service_pb2.PlanModelRequest, answer: planner_service_pb2.PlanResponse
) -> model_service_pb2.PlanModelResponse:
    from darkroom.v1 import model_service_pb2

    response = model_service_pb2.PlanModelResponse(device=request.device)
    outcome = answer.WhichOneof("outcome") or "no_fit"
    getattr(response, outcome).CopyFrom(getattr(answer, outcome))
    return response
