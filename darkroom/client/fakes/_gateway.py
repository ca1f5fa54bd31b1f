"""The fake gateway: three servicers on a loopback port, over jobs kept in memory.

Knows nothing of models, plans or memory. Invariant: it listens only while its block is open.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Self

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from darkroom.client._loop_thread import LoopThread
from darkroom.client.fakes._admission import admit, emoji_model, find_model
from darkroom.client.fakes._job import FakeJob
from darkroom.client.fakes._servicers import ClusterFake, GenerationFake, HealthFake, ModelFake
from darkroom.images import MAX_MESSAGE_BYTES
from darkroom.rpc.errors import DarkroomError, NotDeadError, RequestIdReusedError, UnknownJobError
from darkroom.v1 import (
    cluster_service_pb2_grpc,
    generation_pb2,
    generation_service_pb2_grpc,
    job_pb2,
    model_pb2,
    model_service_pb2_grpc,
)


class FakeGateway:
    """A gateway for tests: `with FakeGateway() as gateway`, or `async with`.

    Args:
        models: the catalogue; where absent, "emoji".
        step_s: how long each denoising step takes.
        listen: where to listen; port 0 takes a free one, told by `address`.
    """

    def __init__(
        self, *, models: Sequence[model_pb2.Model] = (), step_s: float = 0.0, listen: str = "127.0.0.1:0"
    ) -> None:
        self.models = list(models) or [emoji_model()]
        self.step_s = step_s
        self.address = listen
        # In the order of their submission.
        self.jobs: dict[str, FakeJob] = {}
        self._request_ids: dict[str, tuple[str, tuple[generation_pb2.GenerationRequest, job_pb2.JobTerms]]] = {}
        self._refusals: list[DarkroomError] = []
        self._failures: list[DarkroomError] = []
        self._server: grpc.aio.Server | None = None
        self._thread = LoopThread()

    def refuse_next(self, error: DarkroomError) -> None:
        """Makes the next call of any method fail with `error`."""
        self._refusals.append(error)

    def fail_next(self, error: DarkroomError) -> None:
        """Makes the next job that starts end in FAILED with `error`."""
        self._failures.append(error)

    async def __aenter__(self) -> Self:
        options = [("grpc.so_reuseport", 0), ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES)]
        server = grpc.aio.server(options=options)
        generation_service_pb2_grpc.add_GenerationServiceServicer_to_server(GenerationFake(self), server)
        model_service_pb2_grpc.add_ModelServiceServicer_to_server(ModelFake(self), server)
        cluster_service_pb2_grpc.add_ClusterServiceServicer_to_server(ClusterFake(self), server)
        health_pb2_grpc.add_HealthServicer_to_server(HealthFake(health_pb2.HealthCheckResponse.SERVING), server)
        port = server.add_insecure_port(self.address)
        await server.start()
        self.address = f"{self.address.rpartition(':')[0]}:{port}"
        self._server = server
        return self

    async def __aexit__(self, *_: object) -> None:
        tasks = [job.task for job in self.jobs.values() if job.task is not None and not job.task.done()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._server is not None:
            await self._server.stop(None)

    def __enter__(self) -> Self:
        return self._thread.run(self.__aenter__())

    def __exit__(self, *_: object) -> None:
        self._thread.run(self.__aexit__())
        self._thread.close()

    # What the servicers call.

    def check_refusal(self) -> None:
        """Raises the refusal that a test has asked for."""
        if self._refusals:
            raise self._refusals.pop(0)

    def submit(
        self, request: generation_pb2.GenerationRequest, request_id: str, terms: job_pb2.JobTerms, tenant: str
    ) -> FakeJob:
        """Accepts a job and starts it, or returns the one that this request_id made."""
        if request_id in self._request_ids:
            job_id, first = self._request_ids[request_id]
            if first != (request, terms):
                raise RequestIdReusedError(f"request_id {request_id} was used with another request")
            return self.jobs[job_id]
        admitted = admit(request, find_model(self.models, request.model))
        job = FakeJob(f"fake-{len(self.jobs) + 1:06d}", admitted, terms, tenant)
        self.jobs[job.record.id] = job
        if request_id:
            self._request_ids[request_id] = (job.record.id, (request, terms))
        failure = self._failures.pop(0) if self._failures else None
        job.task = asyncio.create_task(job.run(self.step_s, failure), name=job.record.id)
        if terms.HasField("deadline"):
            asyncio.get_running_loop().call_later(terms.deadline.ToNanoseconds() / 1e9, job.expire)
        return job

    def redrive(self, job_id: str) -> FakeJob:
        """Makes a new job of a dead one, or returns the one that it was made into."""
        dead = self.find_job(job_id)
        if dead.record.redriven_as:
            return self.jobs[dead.record.redriven_as]
        if not dead.is_dead:
            raise NotDeadError(f"job {job_id} is not dead")
        job = self.submit(dead.record.request, "", dead.record.terms, dead.record.tenant)
        dead.record.redriven_as, job.record.redriven_from = job.record.id, job_id
        return job

    def find_job(self, job_id: str) -> FakeJob:
        """Returns a job, or raises UnknownJobError."""
        if job_id not in self.jobs:
            raise UnknownJobError(f"there is no job {job_id!r}")
        return self.jobs[job_id]
