"""What the gates ask of planner and worker: the dense model as plain as can be, and the same one with the checkpoints.

Knows nothing of pictures. Invariant: nothing else that the store has takes a checkpoint's place.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from pathlib import Path

from darkroom.artifacts.folder import LocalArtifact
from darkroom.artifacts.names import MANIFEST_SUFFIX
from darkroom.v1 import checkpoint_pb2, device_pb2, plan_pb2, planner_service_pb2, worker_pb2
from services.checkpoint_builder.config import BuilderSettings
from services.checkpoint_builder.gates.services import Services
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


def environment_of(task: Task, settings: BuilderSettings, folder: Path) -> dict[str, str]:
    """Returns the settings of both services: this builder's, with the checkpoints' folder among what may be read."""
    readable = [folder, *settings.source_folders]
    if task.order.source.path:
        # A worker reads what lies in its folders, and not these themselves.
        readable.append(Path(task.order.source.path).parent)
    return {
        "DARKROOM_WORKER_DEVICE": settings.builder_device,
        "DARKROOM_WORKER_MODEL_PATHS": os.pathsep.join(str(path.resolve()) for path in readable),
        "DARKROOM_WORKER_TRUSTED_REPOS": settings.builder_trusted_repos,
        "DARKROOM_WORKER_THREADS": str(settings.builder_threads),
        # It shares its cores with the builder and whatever else runs here: threads that wait spin for a moment only.
        "GOMP_SPINCOUNT": os.environ.get("GOMP_SPINCOUNT", "10000"),
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


def request_of(
    task: Task,
    device: device_pb2.Device,
    inspection: worker_pb2.Inspection,
    made: Mapping[str, LocalArtifact] | None = None,
    folder: Path | None = None,
) -> planner_service_pb2.PlanRequest:
    """Returns what asks for the dense model, or for the one with the checkpoints; either way as plain as can be."""
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


def name_base(task: Task, plan: plan_pb2.Plan) -> None:
    """Lets the worker take a checkpoint of a source with a name of its own, which no planner offers by itself."""
    for part in plan.components:
        if part.source.artifact_id:
            part.source.bases.append(task.base)


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
