"""What making several pictures in one call gives, and what it changes in them.

    python -m bench.batching                                        the bundled emoji model, in fours at most
    python -m bench.batching --model flux.1-schnell --random --sizes 1 2 4 --save bench/results/batching_gpu.json

Runs the worker's own engine in this process, on the plan that the planner makes for this device, and on the same plan
in every other type that is asked for. Rounds of all sizes alternate, so that what else the machine does hits all alike:

- time: a picture's share of its call, and its ratio to a picture alone: 0.5 is twice the throughput. What a job waits
  for is its whole batch: ratio times size. Ratios are of the least times over all rounds, which other programs disturb
  least; medians are saved as well, and on a processor the time that it really worked: with `--threads 1` that tells the
  ratio on a busy machine, too.
- likeness: the picture from the largest batch against the picture of the same request alone: greatest difference of a
  pixel in levels of 255, and the least PSNR.
"""

from __future__ import annotations

import argparse
import io
import json
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from rich.console import Console
from rich.progress import track
from rich.table import Table

from bench.machine import describe_machine
from darkroom.knowledge import load_catalogue
from darkroom.v1 import checkpoint_pb2, engine_pb2, generation_pb2, plan_pb2, planner_service_pb2, worker_pb2
from services.planner.planning import plan as make_plan
from services.worker.config import WorkerSettings
from services.worker.engine.diffusers_engine import DiffusersEngine
from services.worker.engine.reporting import ItemReporter, LoadReporter

TYPES = {"float32": plan_pb2.COMPUTE_TYPE_FLOAT32, "bfloat16": plan_pb2.COMPUTE_TYPE_BFLOAT16}
PROMPTS = (
    "a red apple, 3d style, blue background",
    "a sleeping cat",
    "rocket",
    "a green tree on a hill",
    "a slice of pizza, flat style",
    "two hearts",
    "a yellow taxi in front of a tall house",
    "snowman",
)

CATALOGUE = load_catalogue()
Picture = NDArray[np.uint8]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="emoji", help="of the catalogue")
    parser.add_argument("--random", action="store_true", help="random weights: nothing is downloaded")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda:0 and so on")
    parser.add_argument("--sizes", type=int, nargs="+", default=[1, 2, 4], help="pictures a call; 1 is always measured")
    parser.add_argument("--types", nargs="+", choices=TYPES, default=list(TYPES), help="compute types")
    parser.add_argument("--threads", type=int, default=0, help="of the processor; 0 leaves the choice to PyTorch")
    parser.add_argument("--rounds", type=int, default=5, help="calls of each size")
    parser.add_argument("--save", type=Path, help="write the figures here as JSON")
    options = parser.parse_args()
    figures = measure(options)
    report(figures)
    if options.save:
        options.save.write_text(json.dumps(figures, indent=2) + "\n")
    return 0


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Returns the figures of every type, with the machine they were measured on."""
    engine = DiffusersEngine()
    settings = WorkerSettings(worker_device=options.device, worker_probes=False, worker_threads=options.threads)
    device = engine.open(settings)
    preferences = plan_pb2.PlanPreferences()
    if options.random:
        preferences.source.kind = checkpoint_pb2.CHECKPOINT_KIND_RANDOM
    request = planner_service_pb2.PlanRequest(model=options.model, device=device, preferences=preferences)
    planned = make_plan(request, CATALOGUE)
    if not planned.HasField("plan"):
        raise SystemExit(f"{options.model} does not fit this device")
    sizes = sorted({1, *options.sizes})
    figures: dict[str, Any] = {"model": options.model, "types": {}}
    for name in options.types:
        engine.load(_in_type(planned.plan, TYPES[name]), LoadReporter(lambda event: None, lambda: False))
        figures["types"][name] = _measure_sizes(engine, options.model, sizes, options.rounds)
        engine.unload()
    return {"machine": describe_machine(), **figures}


def report(figures: dict[str, Any]) -> None:
    """Prints the table."""
    title = f"{figures['model']} on {figures['machine'].get('gpu', figures['machine']['processor'])}"
    table = Table(title=title)
    for heading in (
        "type",
        "at once",
        "ms a picture",
        "ratio",
        "of work",
        "waits for",
        "most off, of 255",
        "least PSNR",
    ):
        table.add_column(heading, justify="right")
    for name, told in figures["types"].items():
        for size, figure in told["sizes"].items():
            ratio = figure["ratio"]
            row = [name, size, f"{figure['least_ms_each']:.0f}", f"{ratio:.2f}", f"{figure['processor_ratio']:.2f}"]
            row.append(f"{ratio * int(size):.2f}")
            likeness = told["likeness"] if size == list(told["sizes"])[-1] else None
            row += [f"{likeness['most_off']}", _decibels(likeness["least_psnr_db"])] if likeness else ["", ""]
            table.add_row(*row)
    Console().print(table)


def _measure_sizes(engine: DiffusersEngine, model: str, sizes: Sequence[int], rounds: int) -> dict[str, Any]:
    taken: dict[int, list[float]] = {size: [] for size in sizes}
    worked: dict[int, list[float]] = {size: [] for size in sizes}
    for size in sizes:
        _paint(engine, _items(model, size))
    for _ in track(range(rounds), description="rounds"):
        for size in sizes:
            began_at, worked_s = time.perf_counter(), time.process_time()
            _paint(engine, _items(model, size))
            taken[size].append((time.perf_counter() - began_at) / size)
            worked[size].append((time.process_time() - worked_s) / size)
    figures = {}
    for size in sizes:
        figures[str(size)] = {
            "least_ms_each": round(min(taken[size]) * 1e3, 1),
            "median_ms_each": round(statistics.median(taken[size]) * 1e3, 1),
            "ratio": round(min(taken[size]) / min(taken[1]), 3),
            "processor_ms_each": round(statistics.median(worked[size]) * 1e3, 1),
            "processor_ratio": round(statistics.median(worked[size]) / statistics.median(worked[1]), 3),
        }
    return {"sizes": figures, "likeness": _likeness(engine, model, sizes[-1])}


def _likeness(engine: DiffusersEngine, model: str, size: int) -> dict[str, Any]:
    """Compares every picture of a batch with the same request alone."""
    items = _items(model, size)
    together = _paint(engine, items)
    alone = [_paint(engine, [item])[0] for item in items]
    off = [np.abs(one.astype(float) - other) for one, other in zip(together, alone, strict=True)]
    errors = [float((each**2).mean()) for each in off]
    psnrs = [10 * np.log10(255.0**2 / error) for error in errors if error]
    return {
        "most_off": int(max(each.max() for each in off)),
        "least_psnr_db": round(float(min(psnrs)), 1) if psnrs else None,
        "identical": sum(error == 0 for error in errors),
        "pictures": size,
    }


def _paint(engine: DiffusersEngine, items: Sequence[worker_pb2.RunItem]) -> list[Picture]:
    """Makes the items' pictures in one call."""
    files: dict[str, bytes] = {item.job_id: b"" for item in items}

    def keep(event: engine_pb2.EngineEvent) -> None:
        if event.run.HasField("error"):
            raise RuntimeError(event.run.error.message)
        files[event.run.job_id] += event.run.chunk.data

    engine.generate(items, [ItemReporter(item.job_id, keep, lambda: False) for item in items])
    return [np.asarray(Image.open(io.BytesIO(data))) for data in files.values()]


def _items(model: str, size: int) -> list[worker_pb2.RunItem]:
    """Requests with the model's defaults, prompts of several lengths and seeds of their own."""
    defaults = CATALOGUE.find(model).defaults
    return [
        worker_pb2.RunItem(
            job_id=f"job-{place}",
            request=generation_pb2.GenerationRequest(
                model=model,
                prompt=PROMPTS[place % len(PROMPTS)],
                negative_prompt="",
                width=defaults.width,
                height=defaults.height,
                steps=defaults.steps,
                guidance=defaults.guidance,
                seed=place,
            ),
        )
        for place in range(size)
    ]


def _in_type(planned: plan_pb2.Plan, compute_type: plan_pb2.ComputeType.ValueType) -> plan_pb2.Plan:
    plan = plan_pb2.Plan()
    plan.CopyFrom(planned)
    plan.compute_type = compute_type
    for part in plan.components:
        part.compute_type = compute_type
    return plan


def _decibels(value: float | None) -> str:
    return "identical" if value is None else f"{value:.1f} dB"


if __name__ == "__main__":
    raise SystemExit(main())
