"""Makes every component of an order, one after the other: fetch, compare with what exists, quantise, check.

Knows nothing of the parent beyond the reporter. Invariant: a component that the store has, byte for byte, is not made
twice.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

from darkroom.artifacts.manifest import Manifest
from darkroom.artifacts.store import ArtifactStore
from darkroom.knowledge import load_catalogue
from darkroom.modeling.artifacts.writing import versions
from darkroom.rpc.errors import PlanRefusedError
from darkroom.rpc.logs import log
from darkroom.storage import open_store
from darkroom.v1 import build_pb2, checkpoint_pb2
from services.checkpoint_builder.config import BuilderSettings
from services.checkpoint_builder.making.component import Dense, OnProgress, make, open_dense
from services.checkpoint_builder.making.equivalence import adopt, candidates, same_source
from services.checkpoint_builder.making.identity import check_identity
from services.checkpoint_builder.making.peak import Peak
from services.checkpoint_builder.making.reporting import Reporter
from services.checkpoint_builder.making.source import DenseSource, find_source
from services.checkpoint_builder.order import Part, Task, read_order

NUM_HASHERS = 4


def run(order: build_pb2.BuildOrder, settings: BuilderSettings, folder: Path, reporter: Reporter) -> None:
    """Fills `folder`. Raises DarkroomError and whatever the libraries raise."""
    if settings.builder_threads:
        torch.set_num_threads(settings.builder_threads)
    device = choose_device(settings.builder_device)
    task = read_order(order, load_catalogue(settings.catalog_paths), settings)
    # Every library that an artifact depends on is in memory from here on.
    log.info("making", model=task.variant.name, device=str(device), **versions())
    peak = Peak(device)
    reporter.say(build_pb2.Build(device=str(device), components=[part.name for part in task.parts]))

    def on_progress(progress: build_pb2.BuildProgress) -> None:
        reporter.peak = peak.sample()
        reporter.progress(progress)

    store = ArtifactStore(open_store(settings.store_url))
    with ThreadPoolExecutor(NUM_HASHERS, thread_name_prefix="hash") as pool, torch.inference_mode():
        for part in task.parts:
            dense = open_dense(part, _found(task, part, settings, on_progress))
            peak.begin()
            manifest = _make_part(task, dense, store, folder, device, pool, on_progress)
            log.info("made", stem=part.stem, checkpoint=manifest.id, size_bytes=manifest.size_bytes)
            # What the builder holds is told before a check reads the source whole.
            reporter.say(build_pb2.Build(peak=peak.sample()))
            if not order.skips_gates:
                check = check_identity(dense, manifest, folder, device, reporter.progress)
                reporter.say(build_pb2.Build(checkpoints=[_told(part, manifest, check)]))


def _found(task: Task, part: Part, settings: BuilderSettings, on_progress: OnProgress) -> DenseSource:
    def on_bytes(completed: int, total: int) -> None:
        phase = build_pb2.BUILD_PHASE_FETCHING
        on_progress(build_pb2.BuildProgress(phase=phase, component=part.name, completed=completed, total=total))

    return find_source(task, part, settings, on_bytes)


def _make_part(
    task: Task,
    dense: Dense,
    store: ArtifactStore,
    folder: Path,
    device: torch.device,
    pool: ThreadPoolExecutor,
    on_progress: OnProgress,
) -> Manifest:
    likely = candidates(store, dense)
    found = same_source(likely, dense.digest(pool, on_progress)) if likely else None
    if found is None:
        return make(task, dense, folder, device, pool, on_progress)
    log.info("same_bytes", stem=dense.part.stem, base=found.base, checkpoint=found.id)
    return adopt(store, found, task, dense, folder)


def _told(part: Part, manifest: Manifest, check: checkpoint_pb2.GateCheck) -> checkpoint_pb2.Checkpoint:
    gates = checkpoint_pb2.GateReport(checkpoint_id=manifest.id, checks=[check])
    return checkpoint_pb2.Checkpoint(id=manifest.id, component=part.name, gates=gates)


def choose_device(wanted: str) -> torch.device:
    """Returns the device that `wanted` names; "auto" takes the first of CUDA or ROCm, XPU, CPU.

    Raises:
        PlanRefusedError: there is no such device.
    """
    if wanted == "auto":
        found = next((name for name in ("cuda", "xpu") if _is_there(name)), "cpu")
        return torch.device(found, 0) if found != "cpu" else torch.device("cpu")
    device = torch.device(wanted)
    if device.type != "cpu" and not _is_there(device.type):
        raise PlanRefusedError(f"this machine has no device {wanted!r}; DARKROOM_BUILDER_DEVICE=auto finds one")
    return device


def _is_there(name: str) -> bool:
    backend = getattr(torch, name, None)
    return backend is not None and bool(backend.is_available())
