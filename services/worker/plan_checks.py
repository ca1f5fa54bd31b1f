"""Whether a plan can be executed here, asked before anything is evicted.

Knows nothing of the catalogue but who is trusted, and nothing of torch. Invariant: a check that
fails has changed nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from darkroom.rpc.errors import (
    CorruptCheckpointError,
    InvalidRequestError,
    PlanRefusedError,
    SourceRefusedError,
)
from darkroom.v1 import checkpoint_pb2, device_pb2, plan_pb2
from services.worker.artifact_sources import HOSTED, find_local, is_artifact
from services.worker.checkpoint_files import check_component_folder, check_pipeline_folder, check_skeleton_folder
from services.worker.component_files import FILE_KINDS, read_file_header, source_file
from services.worker.config import WorkerSettings
from services.worker.likeness import check_class, check_classes

SOURCE_FAILED = plan_pb2.FALLBACK_TRIGGER_SOURCE_FAILED
RANDOM = checkpoint_pb2.CHECKPOINT_KIND_RANDOM
# What the assembly line can do today; the rest is refused by name, never done in silence some other way.
SCHEMES = frozenset(
    {
        device_pb2.SCHEME_NONE,
        device_pb2.SCHEME_INT8,
        device_pb2.SCHEME_FP8,
        device_pb2.SCHEME_MXFP8,
        device_pb2.SCHEME_NVFP4,
        device_pb2.SCHEME_FP8_STORAGE,
        device_pb2.SCHEME_GGUF,
    }
)
TIERS = frozenset(
    {
        plan_pb2.OFFLOAD_TIER_NONE,
        plan_pb2.OFFLOAD_TIER_ENCODERS,
        plan_pb2.OFFLOAD_TIER_GROUP,
        plan_pb2.OFFLOAD_TIER_MODEL,
        plan_pb2.OFFLOAD_TIER_SEQUENTIAL,
    }
)
# Special rules of assembly, by the names that plans carry.
KREA, HIDREAM = "krea-2", "hidream-i1"
RULES = frozenset({KREA, HIDREAM})
# Streaming torchao's tensors breaks: copies of their inner parts are not pinned (diffusers 0.42, torchao 0.18). GGUF's
# blocks are not streamed reliably either.
UNSTREAMABLE = SCHEMES - {device_pb2.SCHEME_NONE, device_pb2.SCHEME_FP8_STORAGE}
STREAMING_TIERS = (plan_pb2.OFFLOAD_TIER_GROUP, plan_pb2.OFFLOAD_TIER_SEQUENTIAL)
# Tiers whose text encoders can be streamed; in the others they stay, or visit whole.
STREAMING_TEXT_TIERS = (plan_pb2.OFFLOAD_TIER_ENCODERS, *STREAMING_TIERS)
SOURCES = frozenset(
    {
        checkpoint_pb2.CHECKPOINT_KIND_DENSE,
        checkpoint_pb2.CHECKPOINT_KIND_DENSE_THEN_QUANTISE,
        RANDOM,
    }
)


def check_plan(plan: plan_pb2.Plan, settings: WorkerSettings, is_trusted: Callable[[str], bool]) -> None:
    """Reads headers on disk, so call it off the event loop.

    A plan whose artifact is refused passes if its fallback for that does: the engine meets the same problem, tells it
    and takes the fallback.

    Raises:
        InvalidRequestError: a field that no plan may leave out.
        PlanRefusedError: the plan asks for what this worker can't do.
        SourceRefusedError: the source is missing, outside the allowed folders, not trusted, or of another class.
        CorruptCheckpointError: a weight file is broken.
    """
    try:
        _check_candidate(plan, settings, is_trusted)
    except (SourceRefusedError, CorruptCheckpointError):
        following = next((item.plan for item in plan.fallbacks if item.trigger == SOURCE_FAILED), None)
        if following is None or not any(is_artifact(part) for part in plan.components):
            raise
        check_plan(following, settings, is_trusted)


def _check_candidate(plan: plan_pb2.Plan, settings: WorkerSettings, is_trusted: Callable[[str], bool]) -> None:
    _check_fields(plan)
    _check_abilities(plan)
    folder = source_folder(plan.source, settings)
    if folder is None and plan.source.kind == RANDOM:
        _check_configurations(plan)
    elif folder is None:
        _check_trust(plan.source.repo_id, settings, is_trusted)
    else:
        own = [part.name for part in plan.components if not part.HasField("source")]
        if plan.source.kind == RANDOM:
            check_skeleton_folder(folder, own)
        else:
            check_pipeline_folder(folder, own, plan.pipeline_class)
            check_classes(folder, [part for part in plan.components if not part.HasField("source")])
    for part in plan.components:
        if part.HasField("source"):
            _check_own_source(part, settings, is_trusted)


def source_folder(source: checkpoint_pb2.CheckpointSource, settings: WorkerSettings) -> Path | None:
    """Returns the local folder of a source; None for one on the Hub.

    Raises:
        SourceRefusedError: it names a place outside the allowed folders, or one that does not exist.
    """
    place = source.WhichOneof("location")
    if place == "repo_id":
        return None
    if place == "bundled":
        allowed, folder = [settings.models_dir.resolve()], (settings.models_dir / source.bundled).resolve()
    elif place == "path":
        allowed, folder = settings.model_folders, Path(source.path).resolve()
    else:
        raise SourceRefusedError("the plan's source names no location")
    if not any(folder != parent and folder.is_relative_to(parent) for parent in allowed):
        raise SourceRefusedError(
            f"{getattr(source, place)!r} lies outside the folders that this worker reads; "
            "DARKROOM_WORKER_MODEL_PATHS allows more"
        )
    if not folder.is_dir():
        raise SourceRefusedError(f"there is no model folder {getattr(source, place)!r} on this worker")
    return folder


def check_schemes(plan: plan_pb2.Plan, device: device_pb2.Device | None) -> None:
    """Raises PlanRefusedError unless this device's own trials agree with every scheme of the plan."""
    probes = {probe.scheme: probe for probe in device.probes} if device is not None else {}
    for part in plan.components:
        if part.scheme in (device_pb2.SCHEME_NONE, device_pb2.SCHEME_GGUF):
            continue
        probe, name = probes.get(part.scheme), device_pb2.Scheme.Name(part.scheme).removeprefix("SCHEME_")
        if probe is None:
            raise PlanRefusedError(f"{name} was not seen to run on this worker's device; plan with its own status")
        if not probe.works:
            raise PlanRefusedError(f"{name} failed its trial on this worker's device: {probe.reason}")


def _check_own_source(
    part: plan_pb2.ComponentPlan, settings: WorkerSettings, is_trusted: Callable[[str], bool]
) -> None:
    """A component that comes from elsewhere than the pipeline."""
    if is_artifact(part):
        if find_local(part, settings) is None and part.source.kind == HOSTED:
            _check_trust(part.source.repo_id, settings, is_trusted)
        if part.HasField("dense_source") and source_folder(part.dense_source, settings) is None:
            _check_trust(part.dense_source.repo_id, settings, is_trusted)
        return
    if part.source.kind in FILE_KINDS:
        file = source_file(part.source, settings)
        if file is None:
            _check_trust(part.source.repo_id, settings, is_trusted)
        else:
            read_file_header(file, part.source.kind)
        return
    if part.source.kind not in (checkpoint_pb2.CHECKPOINT_KIND_UNSPECIFIED, checkpoint_pb2.CHECKPOINT_KIND_DENSE):
        kind = checkpoint_pb2.CheckpointKind.Name(part.source.kind).removeprefix("CHECKPOINT_KIND_")
        raise PlanRefusedError(f"this worker can't read {part.name} from a checkpoint of kind {kind} yet")
    folder = source_folder(part.source, settings)
    if folder is None:
        _check_trust(part.source.repo_id, settings, is_trusted)
    else:
        check_component_folder(folder / part.source.subfolder)
        check_class(folder / part.source.subfolder, part)


def _check_fields(plan: plan_pb2.Plan) -> None:
    wanted = ("model", "pipeline_class", "components", "compute_type")
    missing = {f"plan.{name}": "must be set" for name in wanted if not getattr(plan, name)}
    if missing:
        raise InvalidRequestError(missing)


def _check_abilities(plan: plan_pb2.Plan) -> None:
    if plan.engine == plan_pb2.ENGINE_NATIVE:
        raise PlanRefusedError("this worker has no native engine; plan for diffusers")
    if plan.source.kind not in SOURCES:
        kind = checkpoint_pb2.CheckpointKind.Name(plan.source.kind).removeprefix("CHECKPOINT_KIND_")
        raise PlanRefusedError(f"this worker can't read a checkpoint of kind {kind} yet; plan a dense one")
    if plan.offload not in TIERS:
        tier = plan_pb2.OffloadTier.Name(plan.offload).removeprefix("OFFLOAD_TIER_")
        raise PlanRefusedError(f"this worker can't offload by tier {tier} yet; plan a resident model")
    if plan.streams_text_encoders and plan.offload not in STREAMING_TEXT_TIERS:
        tier = plan_pb2.OffloadTier.Name(plan.offload).removeprefix("OFFLOAD_TIER_")
        raise PlanRefusedError(f"text encoders are not streamed in tier {tier}; plan encoders, group or sequential")
    if plan.adapters.adapters:
        raise PlanRefusedError("this worker can't apply adapters yet; plan without them")
    if unknown := sorted(set(plan.assembly_hooks) - RULES):
        raise PlanRefusedError(f"this worker can't assemble {plan.family} pipelines: it has no rule {unknown[0]!r}")
    for part in plan.components:
        if part.scheme in UNSTREAMABLE and _is_streamed(plan, part):
            scheme = device_pb2.Scheme.Name(part.scheme).removeprefix("SCHEME_")
            raise PlanRefusedError(f"{part.name} in {scheme} can't be streamed; plan another tier or another scheme")
        if (part.scheme == device_pb2.SCHEME_GGUF) != (part.source.kind == checkpoint_pb2.CHECKPOINT_KIND_GGUF):
            raise PlanRefusedError(f"{part.name}: scheme GGUF and a GGUF file go together or not at all")
        if part.scheme not in SCHEMES:
            scheme = device_pb2.Scheme.Name(part.scheme).removeprefix("SCHEME_")
            raise PlanRefusedError(f"this worker can't keep {part.name} in {scheme} yet; plan scheme NONE")


def _is_streamed(plan: plan_pb2.Plan, part: plan_pb2.ComponentPlan) -> bool:
    if part.role == plan_pb2.COMPONENT_ROLE_TEXT_ENCODER:
        return plan.streams_text_encoders or plan.offload == plan_pb2.OFFLOAD_TIER_SEQUENTIAL
    return plan.offload in STREAMING_TIERS


def _check_configurations(plan: plan_pb2.Plan) -> None:
    """Random weights need no folder where the plan says how each component is built."""
    lacking = {
        f"plan.components.{part.name}": "needs class_name and configuration where weights are random and have no folder"
        for part in plan.components
        if not (part.class_name and part.configuration)
    }
    if lacking:
        raise InvalidRequestError(lacking)


def _check_trust(repo_id: str, settings: WorkerSettings, is_trusted: Callable[[str], bool]) -> None:
    owner = repo_id.partition("/")[0]
    if settings.trusted_repos.isdisjoint({repo_id, owner}) and not is_trusted(repo_id):
        raise SourceRefusedError(
            f"the repository {repo_id!r} is not in the catalogue; DARKROOM_WORKER_TRUSTED_REPOS can trust it"
        )
