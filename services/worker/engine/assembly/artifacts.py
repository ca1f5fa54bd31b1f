"""Components that come quantised: fetched, compared with the plan, and read straight to where they will compute.

Knows nothing of how artifacts are made. Invariants: an artifact serves only if it is what the plan wants; whatever is
wrong with it is a failed source, which the plan has a budgeted fallback for; dense weights are not read in its stead.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from darkroom.artifacts.folder import LocalArtifact, identify, named_files, open_folder
from darkroom.artifacts.names import GATES_SUFFIX, MANIFEST_SUFFIX, PICKLED_SUFFIX, legacy_stem
from darkroom.artifacts.store import ArtifactStore
from darkroom.modeling.artifacts.pickled import load_pickled
from darkroom.modeling.artifacts.reading import load_artifact
from darkroom.rpc.errors import SourceRefusedError
from darkroom.storage import open_store
from darkroom.v1 import checkpoint_pb2, generation_pb2, plan_pb2
from services.worker.artifact_sources import HOSTED, PickledArtifact, checked, find_local, stem_in, wanted_of
from services.worker.checkpoint_files import read_json
from services.worker.engine.assembly.fetching import fetch
from services.worker.engine.assembly.stage import DTYPES, Assembly
from services.worker.engine.assembly.store_copies import copy_from_store
from services.worker.engine.reporting import LoadReporter

# In the worker's cache: hashes of files that were seen to be right.
VERIFIED = "verified.json"
Artifact = LocalArtifact | PickledArtifact


def obtain(part: plan_pb2.ComponentPlan, assembly: Assembly, report: LoadReporter) -> Artifact:
    """Returns a component's artifact on this machine, fetching it if it must.

    Raises:
        SourceRefusedError: it can't be had, or is not what the plan wants.
        CorruptCheckpointError: damaged.
        CancelledError: asked to stop.
    """
    found = find_local(part, assembly.settings)
    if found is not None:
        return found
    if part.source.kind == HOSTED:
        return _fetch(part, report)
    store = ArtifactStore(open_store(assembly.settings.store_url))
    return copy_from_store(store, part, assembly.settings.copies_folder, report)


def read(part: plan_pb2.ComponentPlan, assembly: Assembly, arrived: Callable[[int], None]) -> torch.nn.Module:
    """Returns the component, in its scheme. Raises as `obtain`.

    Args:
        part: whose artifact was obtained.
        assembly: holds it.
        arrived: told how many bytes arrived; may raise to stop.
    """
    artifact, compute_type = assembly.artifacts[part.name], DTYPES[part.compute_type]
    device = assembly.device if stays_on_device(assembly.plan, part) else torch.device("cpu")
    if isinstance(artifact, LocalArtifact):
        memory = assembly.settings.worker_cache_dir / VERIFIED
        return load_artifact(artifact, compute_type, device, memory, arrived)
    library = "transformers" if part.role == plan_pb2.COMPONENT_ROLE_TEXT_ENCODER else "diffusers"
    config = read_json(_config_file(part, assembly), missing=f"{part.name} has no configuration")
    return load_pickled(artifact.path, wanted_of(part), library, config, compute_type, device, arrived)


def told(artifact: Artifact) -> str:
    """Names an artifact for status: "artifact 0123456789ab"."""
    if isinstance(artifact, LocalArtifact):
        return f"artifact {artifact.manifest.id[:12]}"
    return f"artifact {artifact.path.name}"


def stays_on_device(plan: plan_pb2.Plan, part: plan_pb2.ComponentPlan) -> bool:
    """Tells whether a component rests on the device under the plan's tier."""
    is_denoiser = part.role == plan_pb2.COMPONENT_ROLE_DENOISER
    return plan.offload == plan_pb2.OFFLOAD_TIER_NONE or (
        plan.offload == plan_pb2.OFFLOAD_TIER_ENCODERS and is_denoiser
    )


def _fetch(part: plan_pb2.ComponentPlan, report: LoadReporter) -> Artifact:
    """From the Hub: our own manifest and what it names; else the legacy file by its name, else by its older name."""
    source, stem = part.source, stem_in(part.source)
    folder = _fetch_file(source, stem + MANIFEST_SUFFIX, report)
    if (folder / (stem + MANIFEST_SUFFIX)).is_file():
        data = (folder / (stem + MANIFEST_SUFFIX)).read_bytes()
        manifest = identify(data, stem + MANIFEST_SUFFIX, source.artifact_id)
        for name in (stem + GATES_SUFFIX, *named_files(manifest, stem)):
            folder = _fetch_file(source, name, report)
        return checked(open_folder(folder, stem, source.artifact_id), wanted_of(part))
    older = legacy_stem(part.name, part.scheme)
    for name in (stem, *([older] if older else [])):
        path = _fetch_file(source, name + PICKLED_SUFFIX, report) / (name + PICKLED_SUFFIX)
        if path.is_file():
            return PickledArtifact(path)
    raise SourceRefusedError(f"{source.repo_id} has no artifact {stem} for {part.name}")


def _fetch_file(source: checkpoint_pb2.CheckpointSource, name: str, report: LoadReporter) -> Path:
    one = checkpoint_pb2.CheckpointSource()
    one.CopyFrom(source)
    one.file = name
    return fetch(one, report)


def _config_file(part: plan_pb2.ComponentPlan, assembly: Assembly) -> Path:
    assert assembly.folder is not None, "the source stage comes first"
    own = assembly.sources.get(part.name)
    return (own if own is not None else assembly.folder / part.name) / "config.json"


def progress_of(name: str, done: int, total: int) -> generation_pb2.Progress:
    """Says how many bytes of all components were read."""
    return generation_pb2.Progress(
        phase=generation_pb2.PHASE_ASSEMBLING,
        completed=done,
        total=total,
        fraction=0.9 * min(1.0, done / total) if total else 0.0,
        detail=name,
    )
