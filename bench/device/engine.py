"""The worker's engine in this process: plans are the planner's, loads and pictures go through the real assembly line.

Knows nothing of models. Invariant: what is told as engaged is what the engine told.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from bench.device.measuring import settle
from darkroom.knowledge import Catalogue
from darkroom.v1 import (
    checkpoint_pb2,
    device_pb2,
    engine_pb2,
    generation_pb2,
    plan_pb2,
    planner_service_pb2,
    worker_pb2,
)
from services.planner.planning import plan
from services.worker.config import WorkerSettings
from services.worker.engine.diffusers_engine import DiffusersEngine
from services.worker.engine.reporting import ItemReporter, LoadReporter

RANDOM = checkpoint_pb2.CheckpointSource(kind=checkpoint_pb2.CHECKPOINT_KIND_RANDOM)
Figures = dict[str, Any]


@dataclass(frozen=True)
class Picture:
    """One picture, and how long it took from request to file."""

    data: bytes
    seconds: float


class EngineHere:
    """One engine, opened.

    Args:
        catalogue: that plans are made with.
        device: "cuda:0".
        folder: that models may lie in, and probes are remembered in.
    """

    def __init__(self, catalogue: Catalogue, device: str, folder: Path) -> None:
        self._catalogue = catalogue
        self._engine = DiffusersEngine()
        settings = WorkerSettings(
            worker_device=device, worker_model_paths=str(folder), worker_cache_dir=folder / "probes"
        )
        self._device = self._engine.open(settings)

    def plan(self, model: str, foreign_bytes: int = 0, size: tuple[int, int] = (0, 0), **wishes: Any) -> plan_pb2.Plan:
        """Returns the plan for this device, with so much of its memory taken by others."""
        device = device_pb2.Device()
        device.CopyFrom(self._device)
        device.memory.foreign_bytes = foreign_bytes
        request = planner_service_pb2.PlanRequest(
            model=model,
            device=device,
            preferences=plan_pb2.PlanPreferences(**wishes),
            inspection=worker_pb2.Inspection(is_present=True),
            workload=plan_pb2.Workload(width=size[0], height=size[1]),
        )
        answer = plan(request, self._catalogue)
        if not answer.HasField("plan"):
            raise RuntimeError(f"{model} does not fit: {answer.no_fit}")
        return answer.plan

    def load(self, wanted: plan_pb2.Plan) -> Figures:
        """Loads in place of what is loaded; returns what engaged, bytes, and how long it took."""
        self.unload()
        torch.cuda.reset_peak_memory_stats()
        began = time.perf_counter()
        loaded = self._engine.load(wanted, LoadReporter(lambda event: None, lambda: False))
        torch.cuda.synchronize()
        return {
            "load_s": round(time.perf_counter() - began, 2),
            "load_peak_bytes": torch.cuda.max_memory_allocated(),
            "planned_bytes": loaded.planned_bytes,
            "measured_bytes": loaded.measured_bytes,
            "offload": plan_pb2.OffloadTier.Name(loaded.plan.offload).removeprefix("OFFLOAD_TIER_").lower(),
            "engaged": {knob.knob: _told(knob) for knob in loaded.engagements},
        }

    def paint(self, **fields: Any) -> Picture:
        """Makes one picture; a failure raises."""
        request = generation_pb2.GenerationRequest(allows_constant=True, **fields)
        events: list[engine_pb2.EngineEvent] = []
        began = time.perf_counter()
        report = ItemReporter("bench", events.append, lambda: False)
        self._engine.generate([worker_pb2.RunItem(job_id="bench", request=request)], [report])
        seconds = time.perf_counter() - began
        for event in events:
            if event.run.HasField("error"):
                raise RuntimeError(event.run.error.message)
        return Picture(b"".join(event.run.chunk.data for event in events), seconds)

    def unload(self) -> None:
        """Gives all memory back."""
        self._engine.unload()
        settle()


def time_pictures(paint: Any, few: int, many: int, repeats: int = 2) -> Figures:
    """Returns seconds of a picture of `many` steps, and milliseconds of a step: what steps beyond `few` took.

    Args:
        paint: makes a picture of so many steps.
        few: steps of the short picture.
        many: steps of the long one.
        repeats: pictures of each; medians count.
    """
    paint(few)
    graphs = num_graphs()
    torch.cuda.reset_peak_memory_stats()
    short, long = [], []
    for _ in range(repeats):
        for steps, taken in ((few, short), (many, long)):
            began = time.perf_counter()
            paint(steps)
            taken.append(time.perf_counter() - began)
    picture_s = statistics.median(long)
    return {
        "picture_s": round(picture_s, 3),
        "step_ms": round(1000 * (picture_s - statistics.median(short)) / (many - few), 2),
        "steps": many,
        "peak_bytes": torch.cuda.max_memory_allocated(),
        "reserved_bytes": torch.cuda.max_memory_reserved(),
        "compiled_graphs": num_graphs(),
        "recompiles_while_painting": num_graphs() - graphs,
    }


def num_graphs() -> int:
    """Graphs that were compiled in this process so far."""
    return int(torch._dynamo.utils.counters["stats"]["unique_graphs"])


def _told(knob: generation_pb2.Engagement) -> str:
    resolved = "" if knob.resolved in ("", knob.engaged) else f" (planned: {knob.resolved})"
    return f"{knob.engaged}{resolved}{': ' + knob.reason if knob.reason else ''}"
