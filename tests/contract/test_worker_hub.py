"""Weights fetched from a server that speaks the Hub's endpoints: bytes told, gates named, no more than needed."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from darkroom.rpc.errors import CorruptCheckpointError, SourceRefusedError
from darkroom.v1 import checkpoint_pb2, generation_pb2, plan_pb2, worker_pb2
from tests.engines.painting import failure_of, paint, serve_painter
from tests.engines.worker_server import WorkerServer
from tests.fakes.hub import FakeHub, serve_hub
from tests.tiny.flux import save_tiny_flux, tiny_flux_plan

pytestmark = pytest.mark.asyncio(loop_scope="module")
WEIGHTS = "transformer/diffusion_pytorch_model.safetensors"


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    save_tiny_flux(folder / "tiny")
    return folder


@pytest.fixture(scope="module")
def hub(models: Path) -> Iterator[FakeHub]:
    with serve_hub() as hub:
        for name in ("owner/open", "owner/gated", "owner/rest"):
            hub.repositories[name] = models / "tiny"
        hub.gated.add("owner/gated")
        yield hub


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def worker(models: Path, hub: FakeHub, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[WorkerServer]:
    async with serve_painter(
        models,
        DARKROOM_WORKER_TRUSTED_REPOS="owner",
        HF_ENDPOINT=hub.address,
        HF_HOME=tmp_path_factory.mktemp("hub-cache"),
        HF_HUB_OFFLINE="0",
        HF_HUB_DISABLE_XET="1",
    ) as server:
        yield server


def plan_from(models: Path, repo_id: str) -> plan_pb2.Plan:
    plan = tiny_flux_plan(models / "tiny")
    plan.source.CopyFrom(checkpoint_pb2.CheckpointSource(kind=checkpoint_pb2.CHECKPOINT_KIND_DENSE, repo_id=repo_id))
    return plan


async def test_a_repository_is_fetched_with_its_bytes_told_and_the_second_time_it_is_there(
    worker: WorkerServer, models: Path, hub: FakeHub
) -> None:
    events = await worker.load(plan_from(models, "owner/open"))
    told = [event.progress for event in events if event.progress.phase == generation_pb2.PHASE_DOWNLOADING]
    fetched = [progress.completed for progress in told]
    assert fetched == sorted(fetched)
    assert fetched[-1] >= sum(file.stat().st_size for file in (models / "tiny").rglob("*.safetensors"))
    assert (await paint(worker, steps=2)).data
    num_requests = len(hub.requests)
    assert (await worker.load(plan_from(models, "owner/rest")))[-1].HasField("loaded")
    assert len(hub.requests) > num_requests
    num_requests = len(hub.requests)
    assert (await worker.load(plan_from(models, "owner/open")))[-1].HasField("loaded")
    assert len(hub.requests) == num_requests


@pytest.mark.parametrize(("repo_id", "said"), [("owner/gated", "is gated"), ("owner/nobody", "can't be fetched")])
async def test_a_gated_or_missing_repository_is_named(
    worker: WorkerServer, models: Path, repo_id: str, said: str
) -> None:
    failure = await failure_of(worker.load(plan_from(models, repo_id)))
    assert isinstance(failure, SourceRefusedError)
    assert repo_id in failure.message
    assert said in failure.message


async def test_a_repository_of_a_stranger_is_refused_before_anything_is_asked(
    worker: WorkerServer, models: Path, hub: FakeHub
) -> None:
    num_requests = len(hub.requests)
    failure = await failure_of(worker.load(plan_from(models, "stranger/open")))
    assert isinstance(failure, SourceRefusedError)
    assert len(hub.requests) == num_requests


async def test_weights_that_come_from_elsewhere_are_not_fetched(
    worker: WorkerServer, models: Path, hub: FakeHub
) -> None:
    hub.repositories["owner/replaced"] = models / "tiny"
    shutil.copy(models / "tiny" / WEIGHTS, models / "denoiser.safetensors")
    plan = plan_from(models, "owner/replaced")
    source = plan.components[2].source
    source.kind, source.path = checkpoint_pb2.CHECKPOINT_KIND_SINGLE_FILE, str(models / "denoiser.safetensors")
    assert (await worker.load(plan))[-1].HasField("loaded")
    asked = [request for request in hub.requests if "owner/replaced" in request]
    assert any("transformer/config.json" in request for request in asked)
    assert not any(WEIGHTS in request for request in asked)


@pytest.mark.parametrize(
    "spoil", ["<!DOCTYPE html><html>404</html>", "version https://git-lfs.github.com/spec/v1\noid"]
)
async def test_what_the_hub_sends_instead_of_weights_evicts_nothing(
    worker: WorkerServer, models: Path, hub: FakeHub, spoil: str
) -> None:
    name = f"owner/spoilt-{len(spoil)}"
    folder = models / name.replace("/", "-")
    shutil.copytree(models / "tiny", folder)
    (folder / WEIGHTS).write_text(spoil)
    hub.repositories[name] = folder
    await worker.load(tiny_flux_plan(models / "tiny"))
    before = await paint(worker, steps=2)
    failure = await failure_of(worker.load(plan_from(models, name)))
    assert isinstance(failure, CorruptCheckpointError)
    assert WEIGHTS in failure.message
    status = await worker.status()
    assert (status.state, status.loaded.plan.source.path) == (worker_pb2.WORKER_STATE_READY, str(models / "tiny"))
    assert (await paint(worker, steps=2)).data == before.data


async def test_a_repository_that_can_not_be_had_evicts_nothing(worker: WorkerServer, models: Path) -> None:
    await worker.load(tiny_flux_plan(models / "tiny"))
    for name in ("owner/gated", "owner/nobody"):
        assert isinstance(await failure_of(worker.load(plan_from(models, name))), SourceRefusedError)
    assert (await worker.status()).loaded.plan.source.path == str(models / "tiny")
    assert (await paint(worker, steps=2)).data
