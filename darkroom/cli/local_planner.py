"""A planner started for one call, for machines without a gateway: planning needs nothing but the planner.

Knows of the planner only its command line and the log line that tells its address.
Invariant: the planner has ended when the call returns.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING

from darkroom.cli.up import services_are_here

if TYPE_CHECKING:
    from darkroom.rpc.errors import DarkroomError
    from darkroom.v1 import model_service_pb2, planner_service_pb2

START_S = 20.0
CALL_S = 20.0
STOP_S = 5.0


async def plan_without_gateway(
    requests: Sequence[model_service_pb2.PlanModelRequest], silence: DarkroomError
) -> list[model_service_pb2.PlanModelResponse]:
    """Returns what a gateway would have answered, request by request.

    Raises:
        DarkroomError: the planner's; or `silence`, the gateway's, where no planner can be started.
    """
    import grpc

    from darkroom.rpc.channels import open_channel
    from darkroom.rpc.status import from_rpc_error
    from darkroom.v1 import planner_service_pb2_grpc

    if not services_are_here():
        raise silence
    async with _running_planner(silence) as address, open_channel(address) as channel:
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


@contextlib.asynccontextmanager
async def _running_planner(silence: DarkroomError) -> AsyncIterator[str]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "services.planner"),
        env={**os.environ, "DARKROOM_PLANNER_LISTEN": "127.0.0.1:0"},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        yield await _find_address(process, silence)
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        try:
            async with asyncio.timeout(STOP_S):
                await process.communicate()
        except TimeoutError:
            process.kill()


async def _find_address(process: asyncio.subprocess.Process, silence: DarkroomError) -> str:
    assert process.stderr is not None
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(START_S):
            async for line in process.stderr:
                with contextlib.suppress(ValueError):
                    entry = json.loads(line)
                    if isinstance(entry, dict) and entry.get("event") == "serving":
                        return str(entry["address"])
    raise silence
