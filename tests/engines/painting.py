"""A worker with its real engine on the processor, and what tests ask of it: pictures, failures, what engaged.

Knows nothing of pytest's fixtures. Invariant: a job's name is never used twice, whatever a test calls it.
"""

from __future__ import annotations

import contextlib
import io
import itertools
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from PIL import Image

from darkroom.rpc.errors import DarkroomError
from darkroom.rpc.status import from_rpc_error
from darkroom.v1 import generation_pb2, worker_pb2
from tests.engines.worker_server import WorkerServer, error_of, file_of, item, serve_worker

_names = itertools.count(1)


@dataclass(frozen=True)
class Painted:
    """A picture that a worker made."""

    data: bytes
    output: generation_pb2.Output

    @property
    def pixels(self) -> Any:
        """Levels of 0 to 255 as signed integers, height by width by colour."""
        return np.asarray(Image.open(io.BytesIO(self.data)), dtype=int)

    @property
    def knobs(self) -> dict[str, generation_pb2.Engagement]:
        """What came true, by knob."""
        return knobs_of(self.output)


@contextlib.asynccontextmanager
async def serve_painter(models: Path, **variables: object) -> AsyncIterator[WorkerServer]:
    """Starts a worker that reads pipelines under `models`, on one thread."""
    settings: dict[str, object] = {
        "DARKROOM_WORKER_MODEL_PATHS": models,
        "DARKROOM_WORKER_THREADS": 1,
        "DARKROOM_WORKER_DEVICE": "cpu",
        **variables,
    }
    async with serve_worker("services.worker.engine", **settings) as server:
        yield server


async def paint(worker: WorkerServer, prompt: str = "a red apple", *, model: str = "tiny", **wishes: Any) -> Painted:
    """Has a picture made and returns it; a failure fails the test.

    Args:
        worker: with the model loaded.
        prompt: the text.
        model: that is loaded.
        wishes: of `item`, or any other field of the request.
    """
    job = f"painted-{next(_names)}"
    sized = {name: wishes.pop(name) for name in ("steps", "seed", "side") if name in wishes}
    wanted = item(job, prompt, **sized)
    wanted.request.images.extend(wishes.pop("images", ()))
    for name, value in wishes.items():
        setattr(wanted.request, name, value)
    events = await worker.generate(f"run-{job}", [wanted], model=model)
    assert error_of(events, job) == "", [event.error for event in events if event.HasField("error")]
    return Painted(file_of(events, job), next(event.output for event in events if event.HasField("output")))


async def failure_of(call: Any) -> DarkroomError:
    """Returns what a call fails with."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return from_rpc_error(caught.value)


def knobs_of(told: worker_pb2.LoadedModel | generation_pb2.Output) -> dict[str, generation_pb2.Engagement]:
    """What came true, by knob."""
    return {knob.knob: knob for knob in told.engagements}


def differences(one: Painted, other: Painted) -> Any:
    """How far two pictures are apart at each value, in levels."""
    return np.abs(one.pixels - other.pixels)
