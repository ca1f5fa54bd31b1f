"""The engine that runs diffusers: one device, at most one pipeline.

Knows nothing of sockets or tokens, and reads no catalogue: the plan says it all. Invariant: what is not in
`self._assembly` holds no device memory.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence

# Before diffusers or transformers is imported: they read these once. A bar on stderr is no log line.
os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import diffusers
import psutil  # type: ignore[import-untyped]
import torch
import transformers

from darkroom.modeling.storage import storage_bytes
from darkroom.rpc.errors import DarkroomError, NotLoadedError
from darkroom.rpc.logs import log
from darkroom.v1 import device_pb2, plan_pb2, worker_pb2
from services.worker.config import WorkerSettings
from services.worker.engine import host_heap
from services.worker.engine.assembly.line import assemble, check_sources, dismantle
from services.worker.engine.assembly.stage import Assembly, explain
from services.worker.engine.device import choose_device, device_name, give_back, read_device, versions
from services.worker.engine.generation import generate, most_at_once
from services.worker.engine.loop import Engine
from services.worker.engine.probing.probes import Probes
from services.worker.engine.reporting import ItemReporter, LoadReporter


class DiffusersEngine(Engine):
    """Owns the device and the pipeline."""

    # Set by `open`.
    _settings: WorkerSettings
    _device: torch.device

    def __init__(self) -> None:
        self._assembly: Assembly | None = None
        self._probes: Probes | None = None

    def open(self, settings: WorkerSettings) -> device_pb2.Device:
        self._settings = settings
        for library in (diffusers, transformers):
            library.utils.logging.set_verbosity_error()  # type: ignore[attr-defined]
            library.utils.logging.disable_progress_bar()  # type: ignore[attr-defined]
        warnings.filterwarnings("ignore")
        if settings.worker_threads:
            torch.set_num_threads(settings.worker_threads)
        self._device = choose_device(settings.worker_device)
        if self._device.type == "cpu" and not host_heap.keep_freed():
            log.info("heap_as_it_is", consequence="every step's memory comes from the kernel anew")
        if settings.worker_probes:
            # Beside the imports below, which take as long.
            name = device_name(self._device)
            self._probes = Probes(self._device, name, versions(), settings.worker_cache_dir)
        # Lazy modules of the two libraries cost seconds on first use: now, not in the first load.
        assert diffusers.FluxPipeline is not None
        return self.read_device()

    def read_device(self) -> device_pb2.Device:
        device = read_device(self._device, self._held_bytes())
        if self._probes is not None:
            self._probes.describe(device)
        return device

    def check(self, plan: plan_pb2.Plan, report: LoadReporter) -> None:
        check_sources(plan, self._settings, self._device, report)

    def load(self, plan: plan_pb2.Plan, report: LoadReporter) -> worker_pb2.LoadedModel:
        before = self._allocated_bytes()
        self._assembly = assemble(plan, self._settings, self._device, report)
        planned = self._assembly.plan.memory.weight_bytes or sum(
            part.weight_bytes for part in self._assembly.plan.components
        )
        measured = self._allocated_bytes() - before
        rss = psutil.Process().memory_info().rss
        log.info("assembled", model=plan.model, planned_bytes=planned, measured_bytes=measured, resident_bytes=rss)
        return worker_pb2.LoadedModel(
            plan=self._assembly.plan,
            engagements=self._assembly.engagements,
            planned_bytes=planned,
            measured_bytes=measured,
        )

    def unload(self) -> None:
        if self._assembly is not None:
            dismantle(self._assembly)
        self._assembly = None
        if self._device.type == "cpu":
            host_heap.give_back()

    def most_at_once(self) -> tuple[int, str]:
        return most_at_once(self._assembly) if self._assembly is not None else super().most_at_once()

    def generate(self, items: Sequence[worker_pb2.RunItem], reports: Sequence[ItemReporter]) -> None:
        if self._assembly is None:
            raise NotLoadedError("nothing is loaded")
        generate(self._assembly, items, reports)

    def explain(self, failure: Exception) -> DarkroomError:
        log.error("engine_failure", exc_info=failure)
        give_back(self._device)
        return explain(failure)

    def _held_bytes(self) -> int:
        if self._assembly is None:
            return 0
        return storage_bytes(list(self._assembly.parts.values()), self._device)

    def _allocated_bytes(self) -> int:
        """What the loaded weights take: the allocator's figure where there is one, else their storages."""
        if self._device.type in ("cuda", "xpu"):
            return int(getattr(torch, self._device.type).memory_allocated(self._device))
        return self._held_bytes()
