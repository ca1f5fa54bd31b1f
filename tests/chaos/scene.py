"""Short words for scenarios: submit a job to a cluster, follow it, find who drives it, wait for what must come.

Knows nothing of what a scenario proves. Invariant: every wait ends, with an error that says what was waited for.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import grpc
import psutil

from darkroom.v1 import cluster_service_pb2, generation_pb2, job_pb2
from darkroom.v1 import generation_service_pb2 as messages
from tests.chaos.cluster import Cluster, Size, run_cluster
from tests.chaos.evidence import Evidence, JobEvidence, gather
from tests.chaos.nemesis import engine_of
from tests.chaos.process import Process
from tests.fakes.gateway import Stubs

LIMIT_S = 60.0
CALL_S = 10.0
TERMINAL = (job_pb2.JOB_STATE_SUCCEEDED, job_pb2.JOB_STATE_FAILED, job_pb2.JOB_STATE_CANCELLED)


class Scene:
    """A cluster and a client of each of its gateways."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.stubs = [Stubs(gateway.address) for gateway in cluster.gateways]

    async def submit(
        self,
        prompt: str,
        *,
        steps: int = 4,
        request_id: str = "",
        gateway: int = 0,
        seed: int = 1,
        deadline_s: float = 0.0,
    ) -> str:
        """Returns the job's id."""
        request = generation_pb2.GenerationRequest(model="emoji", prompt=prompt, steps=steps, seed=seed)
        message = messages.SubmitJobRequest(request=request, request_id=request_id)
        if deadline_s:
            message.terms.deadline.FromMilliseconds(int(deadline_s * 1000))
        answer = await self.stubs[gateway].jobs.SubmitJob(message, timeout=CALL_S)
        return str(answer.job.id)

    async def submit_in_the_end(self, prompt: str, gateway: int = 0) -> str:
        """Submits again and again, under one request id, until a gateway that was away is back."""
        request_id = str(uuid.uuid4())
        async with asyncio.timeout(LIMIT_S):
            while True:
                with contextlib.suppress(grpc.aio.AioRpcError):
                    return await self.submit(prompt, request_id=request_id, gateway=gateway)
                await asyncio.sleep(0.1)

    async def get(self, job_id: str) -> job_pb2.Job:
        """The job as any gateway that answers tells it."""
        async with asyncio.timeout(LIMIT_S):
            while True:
                for stubs in self.stubs:
                    with contextlib.suppress(grpc.aio.AioRpcError):
                        return (await stubs.jobs.GetJob(messages.GetJobRequest(job_id=job_id), timeout=2)).job
                await asyncio.sleep(0.1)

    async def watch(self, job_id: str, *, after: int = 0, gateway: int = 0) -> list[job_pb2.JobEvent]:
        """All events of one stream, to its end."""
        request = messages.WatchJobRequest(job_id=job_id, after_sequence=after)
        return [answer.event async for answer in self.stubs[gateway].jobs.WatchJob(request, timeout=LIMIT_S)]

    async def finish(self, *job_ids: str) -> list[job_pb2.Job]:
        """Returns the jobs once all have ended."""
        for job_id in job_ids:
            await self.until(lambda job_id=job_id: self._has_ended(job_id), f"{job_id} ends")  # type: ignore[misc]
        return [await self.get(job_id) for job_id in job_ids]

    async def until_step(self, job_id: str, step: int) -> None:
        """Returns when the job has told that a step is done."""

        async def is_there() -> bool:
            job = await self.get(job_id)
            is_running = job.state == job_pb2.JOB_STATE_RUNNING
            return (
                is_running and job.progress.phase == generation_pb2.PHASE_DENOISING and job.progress.completed >= step
            )

        await self.until(is_there, f"{job_id} reaches step {step}")

    async def until_phase(self, job_id: str, phase: int) -> None:
        """Returns when the job is in a phase."""

        async def is_there() -> bool:
            return (await self.get(job_id)).progress.phase == phase

        await self.until(is_there, f"{job_id} reaches phase {phase}")

    async def until_all_know_what_is_loaded(self) -> None:
        """Returns when every gateway has heard of every worker that it has loaded something."""

        async def they_do() -> bool:
            for stubs in self.stubs:
                answer = await stubs.cluster.ListWorkers(cluster_service_pb2.ListWorkersRequest(), timeout=CALL_S)
                if not all(worker.status.HasField("loaded") for worker in answer.workers):
                    return False
            return True

        await self.until(they_do, "every gateway knows what is loaded")

    async def until(self, holds: Callable[[], Awaitable[bool]], what: str) -> None:
        """Waits for `holds`."""
        try:
            async with asyncio.timeout(LIMIT_S):
                while not await holds():
                    await asyncio.sleep(0.05)
        except TimeoutError:
            raise AssertionError(f"{LIMIT_S:.0f} s have passed before {what}") from None

    async def engine(self, worker: Process) -> psutil.Process:
        """The worker's engine process, once it has one: after a death there is none for a moment."""
        pid = 0

        async def is_there() -> bool:
            nonlocal pid
            pid, _ = await engine_of(worker)
            return pid > 0

        await self.until(is_there, f"{worker.name} has an engine")
        return psutil.Process(pid)

    def driver(self, job_id: str) -> int:
        """Place of the gateway that took the job last."""
        told = [
            (str(entry["at"]), place)
            for place, gateway in enumerate(self.cluster.gateways)
            for entry in said(gateway, job_id)
            if entry["event"] in ("job_claimed", "job_adopted")
        ]
        return max(told)[1]

    async def evidence(self, job_id: str) -> JobEvidence:
        """What there is of the job now."""
        return (await self.all_evidence()).jobs[job_id]

    async def all_evidence(self) -> Evidence:
        """What there is of all jobs now."""
        return await gather(self.cluster)

    async def _has_ended(self, job_id: str) -> bool:
        return (await self.get(job_id)).state in TERMINAL


def said(process: Process, job_id: str) -> list[dict[str, object]]:
    """What a process logged of a job."""
    lines = (line for line in process.log.splitlines() if job_id in line and line.startswith("{"))
    return [json.loads(line) for line in lines]


@contextlib.asynccontextmanager
async def open_scene(size: Size, folder: Path) -> AsyncIterator[Scene]:
    """Runs a cluster with clients for as long as the block."""
    async with run_cluster(size, folder) as cluster:
        scene = Scene(cluster)
        try:
            yield scene
        finally:
            await asyncio.gather(*(stubs.channel.close() for stubs in scene.stubs))
