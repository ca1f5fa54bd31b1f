"""Words for tests of a gateway: settings, submit, watch, finish, download.

Knows nothing of what a test proves. Invariant: every wait ends within T seconds.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest

from darkroom.rpc.status import from_rpc_error
from darkroom.v1 import generation_pb2, generation_service_pb2, job_pb2
from services.gateway.config import GatewaySettings
from tests.fakes.gateway import Gateway, Stubs, serve_gateway
from tests.fakes.planner import FakePlanner, serve_planner
from tests.fakes.worker import FakeWorker, WorkerServer, serve_worker

T = 20.0


class House:
    """Everything that a test may touch."""

    def __init__(self, gateway: Gateway, worker: FakeWorker, server: WorkerServer, planner: FakePlanner) -> None:
        self.gateway = gateway
        self.stubs = gateway.stubs
        self.worker = worker
        self.server = server
        self.planner = planner


def settings_for(folder: Path, worker: str, planner: str, **more: object) -> GatewaySettings:
    values = {
        "gateway_workers": worker,
        "gateway_planner": planner,
        "data_dir": folder / "data",
        "gateway_lease_s": 1.0,
        "gateway_worker_lost_s": 1.0,
        "gateway_hang_slack_s": 0.5,
        "grace_s": 4.0,
    }
    return GatewaySettings(**{**values, **more})  # type: ignore[arg-type]


@contextlib.asynccontextmanager
async def open_house(folder: Path) -> AsyncIterator[House]:
    """A gateway with its own Redis, a fake worker and a fake planner."""
    worker, planner = FakeWorker(), FakePlanner()
    async with (
        serve_worker(worker) as server,
        serve_planner(planner) as address,
        serve_gateway(settings_for(folder, server.address, address)) as gateway,
    ):
        yield House(gateway, worker, server, planner)


def a_request(prompt: str = "a red apple", **fields: object) -> generation_pb2.GenerationRequest:
    return generation_pb2.GenerationRequest(model="tiny", prompt=prompt, **fields)  # type: ignore[arg-type]


async def submit(stubs: Stubs, prompt: str = "a red apple", request_id: str = "", **fields: object) -> job_pb2.Job:
    message = generation_service_pb2.SubmitJobRequest(request=a_request(prompt, **fields), request_id=request_id)
    return (await stubs.jobs.SubmitJob(message, timeout=T)).job


async def watch(stubs: Stubs, job_id: str, after: int = 0) -> list[job_pb2.JobEvent]:
    call = stubs.jobs.WatchJob(generation_service_pb2.WatchJobRequest(job_id=job_id, after_sequence=after), timeout=T)
    return [answer.event async for answer in call]


async def finish(stubs: Stubs, job_id: str) -> job_pb2.Job:
    return (await watch(stubs, job_id))[-1].job


async def get(stubs: Stubs, job_id: str) -> job_pb2.Job:
    return (await stubs.jobs.GetJob(generation_service_pb2.GetJobRequest(job_id=job_id), timeout=T)).job


async def until_state(stubs: Stubs, job_id: str, state: int) -> job_pb2.Job:
    async with asyncio.timeout(T):
        while True:
            job = await get(stubs, job_id)
            if job.state == state:
                return job
            await asyncio.sleep(0.01)


async def download(stubs: Stubs, job_id: str, offset: int = 0) -> tuple[generation_pb2.Output, bytes]:
    request = generation_service_pb2.DownloadOutputRequest(job_id=job_id, offset=offset)
    output, data = None, b""
    async for answer in stubs.jobs.DownloadOutput(request, timeout=T):
        if answer.HasField("output"):
            output = answer.output
        else:
            assert answer.chunk.offset == offset + len(data)
            data += answer.chunk.data
    assert output is not None
    return output, data


def check_truth(events: list[job_pb2.JobEvent]) -> None:
    """State first, sequences rising, progress never back within an attempt, terminal state last and once."""
    assert events[0].HasField("job")
    sequences = [event.sequence for event in events]
    assert sequences == sorted(set(sequences))
    terminal = [event for event in events if event.HasField("job") and event.job.state >= job_pb2.JOB_STATE_SUCCEEDED]
    assert terminal == events[-1:]
    reached = 0.0
    for event in events:
        if event.HasField("job"):
            reached = 0.0
        else:
            assert reached <= event.progress.fraction <= 1
            assert event.progress.total == 0 or event.progress.completed <= event.progress.total
            reached = event.progress.fraction


async def code_of(call: object) -> tuple[grpc.StatusCode, str]:
    """The status code and reason that a call ends with."""

    async def exhaust() -> None:
        if hasattr(call, "__aiter__"):
            async for _ in call:
                pass
        else:
            await call  # type: ignore[misc]

    with pytest.raises(grpc.aio.AioRpcError) as failure:
        await exhaust()
    return failure.value.code(), from_rpc_error(failure.value).reason
