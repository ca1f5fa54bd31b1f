"""Pairs of pictures: by the dense model and by the checkpoint, prompt for prompt and seed for seed, through a worker.

The planner makes both plans, so that the checkpoint is loaded as it will be. Knows nothing of thresholds. Invariant: a
picture counts as the checkpoint's only if the worker says that it was loaded from that very checkpoint.
"""

from __future__ import annotations

import asyncio
import functools
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from darkroom.artifacts.folder import LocalArtifact
from darkroom.artifacts.names import MANIFEST_SUFFIX
from darkroom.knowledge.gates import Judgement
from darkroom.rpc.errors import KernelFailedError
from darkroom.v1 import (
    build_pb2,
    checkpoint_pb2,
    device_pb2,
    generation_pb2,
    plan_pb2,
    planner_service_pb2,
    worker_pb2,
)
from services.checkpoint_builder.config import BuilderSettings
from services.checkpoint_builder.gates.services import Services, running_services
from services.checkpoint_builder.order import Part, Task, own_base

NONE = device_pb2.SCHEME_NONE
CPU = device_pb2.DEVICE_KIND_CPU
TEXT_ENCODER = plan_pb2.COMPONENT_ROLE_TEXT_ENCODER
VAE = plan_pb2.COMPONENT_ROLE_VAE
LOCAL = checkpoint_pb2.CHECKPOINT_KIND_LOCAL_PREQUANTISED
COMPUTE_WORDS: dict[int, str] = {
    plan_pb2.COMPUTE_TYPE_BFLOAT16: "bfloat16",
    plan_pb2.COMPUTE_TYPE_FLOAT16: "float16",
    plan_pb2.COMPUTE_TYPE_FLOAT32: "float32",
}
# Told of (pictures made, pictures in all, what is going on).
OnPicture = Callable[[int, int, str], None]


@dataclass
class Pair:
    """One prompt and seed, painted twice; `rerun` is the dense model again, for the first pair alone."""

    prompt: str
    seed: int
    dense: bytes = b""
    quantised: bytes = b""
    rerun: bytes = b""


@dataclass
class Session:
    """What came of it."""

    pairs: list[Pair] = field(default_factory=list)
    device: str = ""
    # How the checkpoint was loaded, for people.
    loaded: str = ""


async def paint_pairs(
    task: Task,
    settings: BuilderSettings,
    folder: Path,
    made: Mapping[str, LocalArtifact],
    rules: Judgement,
    on_picture: OnPicture,
) -> Session:
    """Returns the pairs.

    Args:
        task: what was built.
        settings: the builder's.
        folder: holds the checkpoints.
        made: by component.
        rules: number of pairs and prompts.
        on_picture: told of progress.

    Raises:
        DarkroomError: what planner or worker refuse or fail with.
    """
    count = task.order.num_pairs or settings.builder_gate_pairs or rules.num_pairs
    session = Session([Pair(rules.prompts[place % len(rules.prompts)], place) for place in range(count)])
    total, done = 2 * count + 1, 0

    def painted(what: str) -> None:
        nonlocal done
        done += 1
        on_picture(done, total, what)

    on_picture(0, total, "starting a worker")
    async with running_services(_environment(task, settings, folder), folder) as services:
        device = await device_of(services, task.parts[0].compute_type)
        session.device = device.name
        on_picture(0, total, "loading the dense model")
        await services.load(_request(task, device, await services.inspect(task.variant.name)))
        items = [_item(task, settings, pair, place) for place, pair in enumerate(session.pairs)]
        for pair, item in zip(session.pairs, items, strict=True):
            pair.dense = await _paint(services, task, "dense", item)
            painted("dense")
        session.pairs[0].rerun = await _paint(services, task, "rerun", items[0])
        painted("dense, again")
        request = _request(task, device, await services.inspect(task.variant.name), made, folder)
        loaded = await services.load(request, functools.partial(_name_base, task))
        session.loaded = _check_loaded(loaded, made)
        for pair, item in zip(session.pairs, items, strict=True):
            pair.quantised = await _paint(services, task, "quantised", item)
            painted("quantised")
    return session


async def _paint(services: Services, task: Task, run: str, item: worker_pb2.RunItem) -> bytes:
    """One picture; a run of its own, so that no batch changes it."""
    own = worker_pb2.RunItem(job_id=f"{run}-{item.job_id}", request=item.request)
    async for picture in services.paint(own.job_id, task.variant.name, [own]):
        return picture
    raise KernelFailedError(f"the worker ended the run of {own.job_id} without a picture")


def _environment(task: Task, settings: BuilderSettings, folder: Path) -> dict[str, str]:
    """Settings of both services: this builder's, with the checkpoints' folder among those that may be read."""
    readable = [folder, *settings.source_folders]
    if task.order.source.path:
        # A worker reads what lies in its folders, and not these themselves.
        readable.append(Path(task.order.source.path).parent)
    return {
        "DARKROOM_WORKER_DEVICE": settings.builder_device,
        "DARKROOM_WORKER_MODEL_PATHS": os.pathsep.join(str(path.resolve()) for path in readable),
        "DARKROOM_WORKER_TRUSTED_REPOS": settings.builder_trusted_repos,
        "DARKROOM_WORKER_THREADS": str(settings.builder_threads),
        "DARKROOM_MODELS_DIR": str(settings.models_dir),
        "DARKROOM_CATALOG_PATH": settings.catalog_path,
        "DARKROOM_DATA_DIR": str(settings.data_dir),
        "DARKROOM_BUILDER_STORE": settings.builder_store,
    }


async def device_of(services: Services, compute_type: int) -> device_pb2.Device:
    """Returns the worker's device; a processor is told to compute in this type, emulated or not."""
    for _ in range(600):
        status = await services.status()
        if status.device.id:
            break
        await asyncio.sleep(0.1)
    device = device_pb2.Device()
    device.CopyFrom(status.device)
    if device.kind == CPU:
        device.has_native_bf16 = compute_type == plan_pb2.COMPUTE_TYPE_BFLOAT16
    return device


def _request(
    task: Task,
    device: device_pb2.Device,
    inspection: worker_pb2.Inspection,
    made: Mapping[str, LocalArtifact] | None = None,
    folder: Path | None = None,
) -> planner_service_pb2.PlanRequest:
    """Asks for the dense model, or for the one with the checkpoints; either way as plain as can be."""
    # What else the store has must not take this checkpoint's place.
    inspection.ClearField("artifacts")
    wishes = plan_pb2.PlanPreferences(
        scheme=NONE,
        text_encoder_scheme=NONE,
        speed_mode=plan_pb2.SPEED_MODE_OFF,
        step_cache=plan_pb2.STEP_CACHE_KIND_OFF,
        forbids_storage_cast=made is None,
    )
    if task.order.source.WhichOneof("location"):
        wishes.source.CopyFrom(task.order.source)
    request = planner_service_pb2.PlanRequest(
        model=task.variant.name, device=device, preferences=wishes, inspection=inspection
    )
    for part in task.parts:
        if made is None:
            break
        if part.role == TEXT_ENCODER:
            request.preferences.text_encoder_scheme = part.scheme  # type: ignore[assignment]
        elif part.role == VAE:
            request.preferences.vae_scheme = part.scheme  # type: ignore[assignment]
        else:
            request.preferences.scheme = part.scheme  # type: ignore[assignment]
        request.artifacts.append(_artifact(task, part, made[part.name], folder))
    return request


def _artifact(task: Task, part: Part, made: LocalArtifact, folder: Path | None) -> checkpoint_pb2.Artifact:
    source = checkpoint_pb2.CheckpointSource(
        kind=LOCAL,
        path=str(folder),
        file=part.stem + MANIFEST_SUFFIX,
        artifact_id=made.manifest.id,
        size_bytes=made.manifest.size_bytes,
    )
    return checkpoint_pb2.Artifact(
        base=own_base(task.variant),
        component=part.name,
        scheme=part.scheme,  # type: ignore[arg-type]
        source=source,
        compute_type=COMPUTE_WORDS[part.compute_type],
    )


def _name_base(task: Task, plan: plan_pb2.Plan) -> None:
    """Lets the worker take a checkpoint of a source with a name of its own, which no planner offers by itself."""
    for part in plan.components:
        if part.source.artifact_id:
            part.source.bases.append(task.base)


def _check_loaded(loaded: worker_pb2.LoadedModel, made: Mapping[str, LocalArtifact]) -> str:
    """Says how it was loaded. Raises KernelFailedError unless every checkpoint is in force."""
    sources = {part.name: part.source.artifact_id for part in loaded.plan.components}
    for name, artifact in made.items():
        if sources.get(name) != artifact.manifest.id:
            why = "; ".join(reason.sentence for reason in loaded.plan.reasons[:2])
            raise KernelFailedError(
                f"the worker did not load {name} from the checkpoint: {why or 'a fallback was taken'}"
            )
    engaged = next((item.engaged for item in loaded.engagements if item.knob == "scheme"), "")
    return f"{engaged}, in {loaded.load_seconds:.1f} s, {loaded.measured_bytes} bytes"


def _item(task: Task, settings: BuilderSettings, pair: Pair, place: int) -> worker_pb2.RunItem:
    defaults = task.variant.defaults
    request = generation_pb2.GenerationRequest(
        model=task.variant.name,
        prompt=pair.prompt,
        negative_prompt=defaults.negative_prompt,
        width=defaults.width,
        height=defaults.height,
        steps=settings.builder_gate_steps or defaults.steps,
        guidance=defaults.guidance,
        seed=pair.seed,
        format=generation_pb2.OUTPUT_FORMAT_PNG,
    )
    return worker_pb2.RunItem(job_id=str(place), request=request)


def progress(on_news: Callable[[build_pb2.Build], None], components: Sequence[str]) -> OnPicture:
    """Returns what turns counts into a build's progress."""

    def tell(done: int, total: int, what: str) -> None:
        news = build_pb2.BuildProgress(
            phase=build_pb2.BUILD_PHASE_PICTURING,
            component=", ".join(components),
            completed=done,
            total=total,
            detail=what,
        )
        on_news(build_pb2.Build(progress=news))

    return tell
