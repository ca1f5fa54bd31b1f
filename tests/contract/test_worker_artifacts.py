"""Artifacts in a real worker: from the builder's store and a Hub, preferred, told, and replaced where they fail."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio
from diffusers import FluxTransformer2DModel

from darkroom.artifacts.folder import LocalArtifact
from darkroom.artifacts.gates import Gates
from darkroom.artifacts.names import GATES_SUFFIX, MANIFEST_SUFFIX, PICKLED_SUFFIX
from darkroom.artifacts.store import BLOBS, ArtifactStore
from darkroom.modeling.artifacts.pickled import PLAIN
from darkroom.modeling.artifacts.reading import load_artifact
from darkroom.rpc.errors import CorruptCheckpointError, SourceRefusedError
from darkroom.storage import open_store
from darkroom.v1 import checkpoint_pb2, device_pb2, generation_pb2, plan_pb2, planner_service_pb2, worker_pb2
from darkroom.v1 import worker_service_pb2 as messages
from services.planner.planning import plan as make_plan
from tests.engines.emoji import CATALOGUE, PROMPT, SEED, SIDE, emoji_plan
from tests.engines.painting import Painted, differences, failure_of, knobs_of, paint, serve_painter
from tests.engines.worker_server import ROOT, WorkerServer
from tests.fakes.hub import FakeHub, serve_hub
from tests.tiny.artifact import DTYPES, PASSED, build_artifact
from tests.tiny.flux import save_tiny_flux, tiny_flux_plan

pytestmark = pytest.mark.asyncio(loop_scope="module")
INT8 = device_pb2.SCHEME_INT8
LOCAL, HOSTED = checkpoint_pb2.CHECKPOINT_KIND_LOCAL_PREQUANTISED, checkpoint_pb2.CHECKPOINT_KIND_HOSTED_PREQUANTISED
SOURCE_FAILED = plan_pb2.FALLBACK_TRIGGER_SOURCE_FAILED
RECIPE = plan_pb2.QuantisationRecipe(min_features=16, exclude_names=["norm", "embed"], min_rows=17)
TINY_STEM = "tiny-INT8"
WEIGHTS = "transformer/diffusion_pytorch_model.safetensors"
TORCH_TYPES = {number: dtype for dtype, number in DTYPES.items()}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("artifacts")
    save_tiny_flux(folder / "models" / "tiny")
    return folder


@pytest.fixture(scope="module")
def hub(folder: Path) -> Iterator[FakeHub]:
    with serve_hub() as hub:
        yield hub


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def worker(folder: Path, hub: FakeHub) -> AsyncIterator[WorkerServer]:
    async with serve_painter(
        folder / "models",
        DARKROOM_BUILDER_STORE=folder / "store",
        DARKROOM_WORKER_TRUSTED_REPOS="owner",
        HF_ENDPOINT=hub.address,
        HF_HOME=folder / "hub-cache",
        HF_HUB_OFFLINE="0",
        HF_HUB_DISABLE_XET="1",
    ) as server:
        yield server


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def emoji(worker: WorkerServer, folder: Path) -> LocalArtifact:
    """The bundled model's denoiser in int8, in the store that the worker reads."""
    dense = emoji_plan((await worker.status()).device, scheme=INT8)
    part = denoiser(dense)
    made = build_artifact(
        folder / "building",
        ROOT / "models" / "emoji" / "transformer",
        FluxTransformer2DModel,
        "transformer",
        INT8,
        part.recipe,
        base="emoji",
        compute_type=TORCH_TYPES[part.compute_type],
    )
    store = ArtifactStore(open_store(folder / "store"))
    store.add(made.manifest, made.paths)
    store.pass_gates(made.manifest, Gates(made.manifest.id, PASSED))
    return made


def denoiser(plan: plan_pb2.Plan) -> plan_pb2.ComponentPlan:
    return next(part for part in plan.components if part.name == "transformer")


async def inspect(worker: WorkerServer) -> worker_pb2.Inspection:
    return (await worker.stub.Inspect(messages.InspectRequest(model="emoji"), timeout=20)).inspection


async def planned(worker: WorkerServer) -> plan_pb2.Plan:
    """What the planner says when it is told what the worker's machine has."""
    request = planner_service_pb2.PlanRequest(
        model="emoji",
        device=(await worker.status()).device,
        preferences=plan_pb2.PlanPreferences(scheme=INT8),
        inspection=await inspect(worker),
    )
    return make_plan(request, CATALOGUE).plan


async def paint_apple(worker: WorkerServer) -> Painted:
    return await paint(worker, PROMPT, model="emoji", seed=SEED, steps=4, side=SIDE)


async def test_what_lies_in_the_store_is_preferred_loaded_and_paints_what_quantising_paints(
    worker: WorkerServer, emoji: LocalArtifact
) -> None:
    (found,) = (await inspect(worker)).artifacts
    assert (found.base, found.component, found.source.artifact_id) == ("emoji", "transformer", emoji.manifest.id)
    plan = await planned(worker)
    assert denoiser(plan).source.kind == LOCAL
    events = await worker.load(plan)
    loaded = events[-1].loaded
    assert knobs_of(loaded)["artifacts"].engaged == f"transformer: artifact {emoji.manifest.id[:12]}"
    assert loaded.measured_bytes == pytest.approx(loaded.planned_bytes, rel=0.02)
    assert not any(event.HasField("fallback") for event in events)
    from_artifact = await paint_apple(worker)
    await worker.load(emoji_plan((await worker.status()).device, scheme=INT8))
    # Mapped weights lie at other addresses than quantised ones, which moves sums by one bit.
    assert differences(from_artifact, await paint_apple(worker)).max() <= 1


async def test_a_damaged_artifact_is_the_plans_fallback_with_its_reason(
    worker: WorkerServer, folder: Path, emoji: LocalArtifact
) -> None:
    plan = await planned(worker)
    (file,) = emoji.manifest.files
    blob = folder / "store" / BLOBS / file.sha256
    content = blob.read_bytes()
    try:
        for place in (len(content) - 5, 12):
            damaged = bytearray(content)
            damaged[place] ^= 1
            blob.write_bytes(damaged)
            # Another plan than the one that is in force.
            plan.idle.assemble.seconds += 1
            events = await worker.load(plan)
            (taken,) = [event.fallback for event in events if event.HasField("fallback")]
            assert taken.trigger == SOURCE_FAILED
            assert taken.error.reason == CorruptCheckpointError.reason
            assert "damaged" in taken.error.message
            knobs = knobs_of(events[-1].loaded)
            assert "transformer=int8" in knobs["scheme"].engaged
            assert "artifacts" not in knobs
    finally:
        blob.write_bytes(content)


async def test_without_a_fallback_it_is_refused_before_anything_is_evicted(
    worker: WorkerServer, folder: Path, emoji: LocalArtifact
) -> None:
    await worker.load(tiny_flux_plan(folder / "models" / "tiny"))
    plan = await planned(worker)
    del plan.fallbacks[:]
    plan.idle.assemble.seconds = 601
    stale, elsewhere, foreign, unnamed = (plan_pb2.Plan.FromString(plan.SerializeToString()) for _ in range(4))
    denoiser(stale).recipe.exclude_names.append("proj_out")
    denoiser(elsewhere).source.path = str(folder / "hub-cache")
    del denoiser(foreign).source.bases[:]
    denoiser(foreign).source.bases.append("black-forest-labs/FLUX.1-dev")
    denoiser(unnamed).source.artifact_id = ""
    for wrong, said in (
        (stale, "stale list"),
        (elsewhere, "outside the folders"),
        (foreign, "was made of emoji"),
        (unnamed, "no id"),
    ):
        failure = await failure_of(worker.load(wrong))
        assert isinstance(failure, SourceRefusedError)
        assert said in failure.message
    assert (await worker.status()).loaded.plan.model == "tiny"


def hosted_plan(folder: Path, repository: str, **fields: str) -> plan_pb2.Plan:
    """A tiny FLUX.1 from the Hub, its denoiser from a repository of artifacts there."""
    plan = tiny_flux_plan(folder / "models" / "tiny")
    plan.source.CopyFrom(
        checkpoint_pb2.CheckpointSource(kind=checkpoint_pb2.CHECKPOINT_KIND_DENSE, repo_id=f"owner/dense-{repository}")
    )
    part = denoiser(plan)
    part.scheme, part.class_name = INT8, "FluxTransformer2DModel"
    part.recipe.CopyFrom(RECIPE)
    part.source.CopyFrom(
        checkpoint_pb2.CheckpointSource(
            kind=HOSTED, repo_id=f"owner/{repository}", file=TINY_STEM + PICKLED_SUFFIX, bases=["owner/tiny"], **fields
        )
    )
    return plan


def host(hub: FakeHub, folder: Path, repository: str) -> Path:
    """Puts the dense pipeline on the Hub, and beside it an empty repository for artifacts."""
    hub.repositories[f"owner/dense-{repository}"] = folder / "models" / "tiny"
    hub.repositories[f"owner/{repository}"] = made = folder / "hosted" / repository
    made.mkdir(parents=True)
    return made


def make_tiny(folder: Path, target: Path, **options: bool) -> LocalArtifact:
    compute_type = TORCH_TYPES[denoiser(tiny_flux_plan(folder / "models" / "tiny")).compute_type]
    dense = folder / "models" / "tiny" / "transformer"
    return build_artifact(
        target,
        dense,
        FluxTransformer2DModel,
        "transformer",
        INT8,
        RECIPE,
        base="owner/tiny",
        compute_type=compute_type,
        **options,
    )


async def test_a_hosted_artifact_is_fetched_instead_of_the_dense_shards(
    worker: WorkerServer, folder: Path, hub: FakeHub
) -> None:
    made = make_tiny(folder, host(hub, folder, "ours"))
    events = await worker.load(hosted_plan(folder, "ours"))
    assert f"artifact {made.manifest.id[:12]}" in knobs_of(events[-1].loaded)["scheme"].reason
    assert any(event.progress.phase == generation_pb2.PHASE_DOWNLOADING for event in events)
    assert not any(WEIGHTS in request for request in hub.requests if "dense-ours" in request)
    assert (await paint(worker, steps=2)).data
    num_requests = len(hub.requests)
    await worker.load(tiny_flux_plan(folder / "models" / "tiny"))
    await worker.load(hosted_plan(folder, "ours"))
    asked = [request for request in hub.requests[num_requests:] if "GET" in request and "safetensors" in request]
    assert asked == []


@pytest.mark.parametrize("name", [TINY_STEM, "transformer_int8"])
async def test_the_pickled_layout_is_read_by_its_name_or_its_older_one(
    worker: WorkerServer, folder: Path, hub: FakeHub, name: str
) -> None:
    import torch

    repository = f"pickled-{name.replace('_', '-')}"
    target = host(hub, folder, repository)
    made = make_tiny(folder, folder / "pickling" / name)
    module = load_artifact(made, TORCH_TYPES[made.manifest.compute_type], torch.device("cpu"))
    state = {key: tensor.detach() for key, tensor in module.state_dict().items()}
    metadata = {"base_model_id": "owner/tiny", "scheme": "int8", "min_features": 16}
    torch.save({"format": PLAIN, "metadata": metadata, "state_dict": state}, target / (name + PICKLED_SUFFIX))
    events = await worker.load(hosted_plan(folder, repository))
    assert f"artifact {name}.pt" in knobs_of(events[-1].loaded)["scheme"].reason


async def test_hosted_artifacts_that_are_missing_unpassed_or_strangers_are_told(
    worker: WorkerServer, folder: Path, hub: FakeHub
) -> None:
    host(hub, folder, "empty")
    failure = await failure_of(worker.load(hosted_plan(folder, "empty")))
    assert "no artifact" in failure.message
    make_tiny(folder, host(hub, folder, "unpassed"), has_passed=False)
    failure = await failure_of(worker.load(hosted_plan(folder, "unpassed")))
    assert "has not passed its gates" in failure.message
    stranger = hosted_plan(folder, "ours")
    denoiser(stranger).source.repo_id = "stranger/ours"
    failure = await failure_of(worker.load(stranger))
    assert "not in the catalogue" in failure.message


async def test_a_failed_fetch_takes_the_dense_fallback_that_was_budgeted(
    worker: WorkerServer, folder: Path, hub: FakeHub
) -> None:
    host(hub, folder, "gone")
    plan, dense = hosted_plan(folder, "gone"), hosted_plan(folder, "gone")
    denoiser(dense).ClearField("source")
    plan.fallbacks.add(trigger=SOURCE_FAILED, plan=dense)
    events = await worker.load(plan)
    (taken,) = [event.fallback for event in events if event.HasField("fallback")]
    assert taken.error.reason == SourceRefusedError.reason
    assert "transformer=int8" in knobs_of(events[-1].loaded)["scheme"].engaged


async def test_a_folder_of_ones_own_is_read_where_it_is_allowed(worker: WorkerServer, folder: Path) -> None:
    made = make_tiny(folder, folder / "models" / "own")
    plan = tiny_flux_plan(folder / "models" / "tiny")
    part = denoiser(plan)
    part.scheme, part.class_name = INT8, "FluxTransformer2DModel"
    part.recipe.CopyFrom(RECIPE)
    source = checkpoint_pb2.CheckpointSource(
        kind=LOCAL, path=str(folder / "models" / "own"), file=TINY_STEM + MANIFEST_SUFFIX, bases=["owner/tiny"]
    )
    part.source.CopyFrom(source)
    loaded = (await worker.load(plan))[-1].loaded
    assert f"artifact {made.manifest.id[:12]}" in knobs_of(loaded)["scheme"].reason
    outside = folder / "outside"
    shutil.copytree(folder / "models" / "own", outside)
    part.source.path = str(outside)
    assert "outside the folders" in (await failure_of(worker.load(plan))).message
    part.source.path = str(folder / "models" / "own")
    (folder / "models" / "own" / (TINY_STEM + GATES_SUFFIX)).unlink()
    assert "has not passed" in (await failure_of(worker.load(plan))).message
    part.source.artifact_id = made.manifest.id
    assert (await worker.load(plan))[-1].HasField("loaded")
