"""Pairs of pictures: by the dense model and by the checkpoint, prompt for prompt and seed for seed, through a worker.

The planner makes both plans, so that the checkpoint is loaded as it will be. Knows nothing of thresholds. Invariant: a
picture counts as the checkpoint's only if the worker says that it was loaded from that very checkpoint.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from darkroom.artifacts.folder import LocalArtifact
from darkroom.knowledge.gates import Judgement
from darkroom.rpc.errors import KernelFailedError
from darkroom.v1 import (
    build_pb2,
    generation_pb2,
    worker_pb2,
)
from services.checkpoint_builder.config import BuilderSettings
from services.checkpoint_builder.gates.asking import device_of, environment_of, name_base, request_of
from services.checkpoint_builder.gates.services import Services, running_services
from services.checkpoint_builder.order import Task

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
    async with running_services(environment_of(task, settings, folder), folder) as services:
        device = await device_of(services, task.parts[0].compute_type)
        session.device = device.name
        on_picture(0, total, "loading the dense model")
        await services.load(request_of(task, device, await services.inspect(task.variant.name)))
        items = [_item(task, settings, pair, place) for place, pair in enumerate(session.pairs)]
        for pair, item in zip(session.pairs, items, strict=True):
            pair.dense = await _paint(services, task, "dense", item)
            painted("dense")
        session.pairs[0].rerun = await _paint(services, task, "rerun", items[0])
        painted("dense, again")
        request = request_of(task, device, await services.inspect(task.variant.name), made, folder)
        loaded = await services.load(request, functools.partial(name_base, task))
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
    return f"{engaged}, in {loaded.load_seconds:.1f} s, {loaded.measured_bytes:,} bytes"


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
