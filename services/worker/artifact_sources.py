"""Artifacts that plans name: found on this machine and compared with the plan, before anything is evicted.

Reads manifests, gates and headers; no torch, no network. Invariant: an artifact that passes is inside an allowed folder
or the builder's store, and is what the plan wants of its component.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from darkroom.artifacts.folder import LocalArtifact, open_folder
from darkroom.artifacts.names import MANIFEST_SUFFIX, PICKLED_SUFFIX
from darkroom.artifacts.store import ArtifactStore
from darkroom.artifacts.validation import Wanted, check_manifest
from darkroom.rpc.errors import SourceRefusedError
from darkroom.storage import open_store
from darkroom.v1 import checkpoint_pb2, plan_pb2
from services.worker.config import WorkerSettings

HOSTED, LOCAL = checkpoint_pb2.CHECKPOINT_KIND_HOSTED_PREQUANTISED, checkpoint_pb2.CHECKPOINT_KIND_LOCAL_PREQUANTISED
ARTIFACT_KINDS = (HOSTED, LOCAL)
# What `file` of a source ends in.
_ENDS = (MANIFEST_SUFFIX, PICKLED_SUFFIX, ".safetensors")


@dataclass(frozen=True)
class PickledArtifact:
    """A state dict in the legacy layout; what it says of itself is inside, and is compared when it is read."""

    path: Path


def is_artifact(part: plan_pb2.ComponentPlan) -> bool:
    """Tells whether a component comes quantised."""
    return part.source.kind in ARTIFACT_KINDS


def stem_in(source: checkpoint_pb2.CheckpointSource) -> str:
    """Returns the artifact's name without its end. Raises SourceRefusedError where the source names no file."""
    for end in _ENDS:
        stem = source.file.removesuffix(end)
        if stem and stem != source.file and "/" not in stem:
            return stem
    raise SourceRefusedError(f"{source.file!r} is no artifact's file: it ends in none of {', '.join(_ENDS)}")


def wanted_of(part: plan_pb2.ComponentPlan) -> Wanted:
    """Returns what the plan wants of the component's artifact. Raises SourceRefusedError where it names no base."""
    if not part.source.bases:
        raise SourceRefusedError(f"the plan does not say which models an artifact of {part.name} may be made of")
    return Wanted(
        bases=tuple(part.source.bases),
        component=part.name,
        scheme=part.scheme,
        compute_type=part.compute_type,
        class_name=part.class_name,
        recipe=part.recipe,
    )


def find_local(part: plan_pb2.ComponentPlan, settings: WorkerSettings) -> LocalArtifact | PickledArtifact | None:
    """Returns a component's artifact, compared with the plan; None for one that is still to be fetched.

    Raises:
        SourceRefusedError: outside the allowed folders, missing, not passed, or not what the plan wants.
        CorruptCheckpointError: damaged.
    """
    source, stem = part.source, stem_in(part.source)
    wanted = wanted_of(part)
    if source.kind == HOSTED:
        if not source.repo_id:
            raise SourceRefusedError(f"the plan names no repository for the artifact of {part.name}")
        return None
    if source.path == settings.store_url:
        return _in_store(source, stem, wanted, settings)
    folder = _allowed(Path(source.path), settings)
    if source.file.endswith(PICKLED_SUFFIX) and not (folder / (stem + MANIFEST_SUFFIX)).is_file():
        return _pickled(folder / source.file)
    return checked(open_folder(folder, stem, source.artifact_id), wanted)


def checked(artifact: LocalArtifact, wanted: Wanted) -> LocalArtifact:
    """Returns the artifact. Raises SourceRefusedError unless it is what is wanted."""
    manifest = artifact.manifest
    check_manifest(manifest, wanted, f"artifact {manifest.id[:12]}")
    return artifact


def _in_store(
    source: checkpoint_pb2.CheckpointSource, stem: str, wanted: Wanted, settings: WorkerSettings
) -> LocalArtifact | None:
    if not source.artifact_id:
        raise SourceRefusedError(f"the plan names {stem} in the builder's store, but no id")
    if not settings.has_store:
        raise SourceRefusedError(f"there is no store {settings.store_url!r} on this worker")
    store = ArtifactStore(open_store(settings.store_url))
    if store.store.is_local:
        return checked(store.open(stem, source.artifact_id), wanted)
    check_manifest(store.get(stem, source.artifact_id), wanted, f"artifact {source.artifact_id[:12]}")
    return None


def _pickled(path: Path) -> PickledArtifact:
    if not path.is_file():
        raise SourceRefusedError(f"there is no artifact {path.name} in {path.parent.name}")
    return PickledArtifact(path)


def _allowed(folder: Path, settings: WorkerSettings) -> Path:
    real = folder.resolve()
    if not any(real.is_relative_to(parent) for parent in settings.model_folders):
        raise SourceRefusedError(
            f"{str(folder)!r} lies outside the folders that this worker reads; DARKROOM_WORKER_MODEL_PATHS allows more"
        )
    if not real.is_dir():
        raise SourceRefusedError(f"there is no folder {str(folder)!r} on this worker")
    return real
