"""The blocking client: the awaited one, run on a thread of its own.

Knows nothing of what the calls do. Invariant: an interrupted call is cancelled before the interrupt goes on, so that
Ctrl-C leaves no job behind.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Self, Unpack

from darkroom.client._async_client import AsyncClient
from darkroom.client._jobs import OnEvent
from darkroom.client._loop_thread import LoopThread
from darkroom.client._models import LOAD_S, OnLoadEvent
from darkroom.client._picture import Picture
from darkroom.client._request import RequestFields
from darkroom.v1 import (
    cluster_service_pb2,
    device_pb2,
    job_pb2,
    model_pb2,
    model_service_pb2,
    plan_pb2,
    worker_pb2,
)


class Client:
    """A client of one or more gateways that blocks. Any thread may use it.

        with Client("127.0.0.1:50051") as darkroom:
            picture = darkroom.generate("a red apple", seed=7)
            picture.save("apple.png")

    Callbacks run on the client's own thread. Arguments and errors are those of `AsyncClient`, method by method.
    """

    def __init__(
        self,
        address: str | None = None,
        *,
        timeout_s: float = 20.0,
        patience_s: float = 30.0,
        tenant: str | None = None,
    ) -> None:
        self._client = AsyncClient(address, timeout_s=timeout_s, patience_s=patience_s, tenant=tenant)
        self._thread = LoopThread()

    @property
    def address(self) -> str:
        """Where the gateway is looked for."""
        return self._client.address

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends what is under way. A closed client can't be used again."""
        if self._thread.is_open:
            self._thread.run(self._client.close())
            self._thread.close()

    def is_ready(self) -> bool:
        """See `AsyncClient.is_ready`."""
        return self._thread.run(self._client.is_ready())

    def wait_until_ready(self, timeout_s: float = 30.0) -> None:
        """See `AsyncClient.wait_until_ready`."""
        self._thread.run(self._client.wait_until_ready(timeout_s))

    # Pictures

    def generate(self, prompt: str, *, on_event: OnEvent | None = None, **fields: Unpack[RequestFields]) -> Picture:
        """Makes one picture. See `AsyncClient.generate`."""
        return self._thread.run(self._client.generate(prompt, on_event=on_event, **fields))

    def generate_many(
        self, prompt: str, *, count: int, on_event: OnEvent | None = None, **fields: Unpack[RequestFields]
    ) -> list[Picture]:
        """Makes `count` pictures with consecutive seeds. See `AsyncClient.generate_many`."""
        return self._thread.run(self._client.generate_many(prompt, count=count, on_event=on_event, **fields))

    def stream(self, prompt: str, **fields: Unpack[RequestFields]) -> Generator[job_pb2.JobEvent | Picture, None, None]:
        """Yields a new job's events, then its picture; leaving the loop cancels the job. See `AsyncClient.stream`."""
        return self._thread.iterate(self._client.stream(prompt, **fields))

    def follow(self, job: job_pb2.Job) -> Generator[job_pb2.JobEvent | Picture, None, None]:
        """Yields a submitted job's events, then its picture; leaving the loop cancels the job."""
        return self._thread.iterate(self._client.follow(job))

    # Jobs

    def submit(self, prompt: str, *, request_id: str | None = None, **fields: Unpack[RequestFields]) -> job_pb2.Job:
        """Submits a job and returns it as accepted. See `AsyncClient.submit`."""
        return self._thread.run(self._client.submit(prompt, request_id=request_id, **fields))

    def submit_many(self, prompt: str, *, count: int, **fields: Unpack[RequestFields]) -> Sequence[job_pb2.Job]:
        """Submits `count` jobs with consecutive seeds. See `AsyncClient.submit_many`."""
        return self._thread.run(self._client.submit_many(prompt, count=count, **fields))

    def get(self, job_id: str) -> job_pb2.Job:
        """Returns a job as it is now."""
        return self._thread.run(self._client.get(job_id))

    def list_jobs(self, *, states: Sequence[job_pb2.JobState.ValueType] = (), limit: int = 50) -> Sequence[job_pb2.Job]:
        """Returns the newest jobs, newest first."""
        return self._thread.run(self._client.list_jobs(states=states, limit=limit))

    def cancel(self, job_id: str) -> job_pb2.Job:
        """Ends a job and returns it. See `AsyncClient.cancel`."""
        return self._thread.run(self._client.cancel(job_id))

    def list_dead(self, *, limit: int = 50) -> Sequence[job_pb2.Job]:
        """Returns the newest dead jobs. See `AsyncClient.list_dead`."""
        return self._thread.run(self._client.list_dead(limit=limit))

    def redrive(self, job_id: str, *, request_id: str | None = None) -> job_pb2.Job:
        """Submits a dead job once more and returns the new job. See `AsyncClient.redrive`."""
        return self._thread.run(self._client.redrive(job_id, request_id=request_id))

    def watch(self, job_id: str, *, after_sequence: int = 0) -> Generator[job_pb2.JobEvent, None, None]:
        """Yields a job's state and then its events. See `AsyncClient.watch`."""
        return self._thread.iterate(self._client.watch(job_id, after_sequence=after_sequence))

    def wait(self, job_id: str, *, on_event: OnEvent | None = None) -> Picture:
        """Waits for a job and returns its picture. See `AsyncClient.wait`."""
        return self._thread.run(self._client.wait(job_id, on_event=on_event))

    def download(self, job_id: str) -> Picture:
        """Returns the picture of a job that has succeeded."""
        return self._thread.run(self._client.download(job_id))

    # Models and workers

    def list_models(self) -> Sequence[model_pb2.Model]:
        """Returns the catalogue by name."""
        return self._thread.run(self._client.list_models())

    def get_model(self, model: str) -> model_pb2.Model:
        """Returns one model by name or alias."""
        return self._thread.run(self._client.get_model(model))

    def plan(
        self,
        model: str,
        *,
        worker_id: str | None = None,
        device: device_pb2.Device | None = None,
        preferences: plan_pb2.PlanPreferences | None = None,
        workload: plan_pb2.Workload | None = None,
    ) -> model_service_pb2.PlanModelResponse:
        """Returns how a model would run. See `AsyncClient.plan`."""
        return self._thread.run(
            self._client.plan(model, worker_id=worker_id, device=device, preferences=preferences, workload=workload)
        )

    def load(
        self,
        model: str,
        *,
        worker_id: str = "",
        preferences: plan_pb2.PlanPreferences | None = None,
        on_event: OnLoadEvent | None = None,
        timeout_s: float = LOAD_S,
    ) -> worker_pb2.LoadedModel:
        """Loads a model on a worker. See `AsyncClient.load`."""
        return self._thread.run(
            self._client.load(
                model, worker_id=worker_id, preferences=preferences, on_event=on_event, timeout_s=timeout_s
            )
        )

    def unload(self, worker_id: str) -> worker_pb2.WorkerStatus:
        """Gives a worker's memory back."""
        return self._thread.run(self._client.unload(worker_id))

    def list_workers(self) -> Sequence[cluster_service_pb2.ClusterWorker]:
        """Returns every worker that the gateway looks for."""
        return self._thread.run(self._client.list_workers())
