"""The bundled model in every scheme and tier that this device runs: how far its pictures move, what they still show,
and what they cost in time and memory.

    python -m bench.schemes                                       a table
    python -m bench.schemes --device cuda:0                       on a GPU
    python -m bench.schemes --save bench/results/schemes.json     figures, and the pictures beside them as a sheet

Every cell is planned by the planner, given a tier, and assembled by the worker's own line; what the worker refuses is
told with its reason. The picture is held against the dense, resident one of the same seed. Times are ratios to that one
within the run; on a processor they are the process's own. Bytes are those that the weights fill; on a GPU also those
that its allocator holds at rest and at the peak.
"""

from __future__ import annotations

import argparse
import io
import json
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from bench.machine import describe_machine
from darkroom.knowledge import load_catalogue
from darkroom.modeling.storage import storage_bytes
from darkroom.rpc.errors import DarkroomError, PlanRefusedError
from darkroom.v1 import device_pb2, engine_pb2, generation_pb2, plan_pb2, planner_service_pb2, worker_pb2
from models.emoji.retrieval import load_reference
from services.planner.planning import plan as make_plan
from services.worker.config import WorkerSettings
from services.worker.engine.assembly.line import assemble, dismantle
from services.worker.engine.assembly.stage import Assembly
from services.worker.engine.device import choose_device, device_name, read_device, versions
from services.worker.engine.generation import generate
from services.worker.engine.probing.probes import Probes
from services.worker.engine.reporting import ItemReporter, LoadReporter
from services.worker.plan_checks import check_plan

CATALOGUE = load_catalogue()
SCHEMES = ("NONE", "FP8_STORAGE", "INT8", "FP8", "MXFP8", "NVFP4")
TIERS = ("NONE", "ENCODERS", "GROUP", "MODEL", "SEQUENTIAL")
# What to paint, and what the nearest training picture should be called.
PROMPTS = {
    "a red apple, 3d style, blue background": "red apple",
    "a cat face, 3d style, green background": "cat face",
    "a house, flat style, yellow background": "house",
}
SEED, STEPS, SIDE = 3, 12, 128
SAME_DB = 100.0


def planned(device: device_pb2.Device, scheme: str, tier: str) -> plan_pb2.Plan:
    """Returns the planner's plan for a scheme, in a tier. Raises PlanRefusedError."""
    wishes = plan_pb2.PlanPreferences(
        scheme=device_pb2.Scheme.Value(f"SCHEME_{scheme}"), speed_mode=plan_pb2.SPEED_MODE_OFF
    )
    request = planner_service_pb2.PlanRequest(model="emoji", device=device, preferences=wishes)
    plan = make_plan(request, CATALOGUE).plan
    plan.offload = plan_pb2.OffloadTier.Value(f"OFFLOAD_TIER_{tier}")
    plan.streams_text_encoders = tier == "SEQUENTIAL"
    return plan


def paint(assembly: Assembly, prompt: str) -> tuple[bytes, float]:
    """Returns a picture's file and the seconds that it took: on a processor its own, which others don't lengthen."""
    clock = time.process_time if assembly.device.type == "cpu" else time.perf_counter
    wanted = generation_pb2.GenerationRequest(
        prompt=prompt, negative_prompt="", width=SIDE, height=SIDE, steps=STEPS, guidance=2.0, seed=SEED
    )
    events: list[engine_pb2.EngineEvent] = []
    began_at = clock()
    item = worker_pb2.RunItem(job_id="cell", request=wanted)
    generate(assembly, [item], [ItemReporter("cell", events.append, lambda: False)])
    seconds = clock() - began_at
    failures = [event.run.error.message for event in events if event.run.HasField("error")]
    if failures:
        raise PlanRefusedError(failures[0])
    return b"".join(event.run.chunk.data for event in events if event.run.HasField("chunk")), seconds


def measure(plan: plan_pb2.Plan, device: torch.device, repeats: int) -> dict[str, Any]:
    """Returns pictures, seconds of a picture, and bytes of one cell."""
    settings = WorkerSettings()
    check_plan(plan, settings, lambda repo_id: False)
    assembly = assemble(plan, settings, device, LoadReporter(lambda event: None, lambda: False))
    try:
        cell: dict[str, Any] = {
            "engaged": next(knob.engaged for knob in assembly.engagements if knob.knob == "scheme"),
            "weight_bytes": storage_bytes(assembly.parts.values()),
        }
        if device.type == "cuda":
            cell["resident_bytes"] = torch.cuda.memory_allocated(device)
            torch.cuda.reset_peak_memory_stats(device)
        pictures = {prompt: paint(assembly, prompt)[0] for prompt in PROMPTS}
        prompt = next(iter(PROMPTS))
        cell["picture_s"] = min(paint(assembly, prompt)[1] for _ in range(repeats))
        if device.type == "cuda":
            cell["peak_bytes"] = torch.cuda.max_memory_allocated(device)
    finally:
        dismantle(assembly)
    return cell | {"pictures": pictures}


def compare(cell: dict[str, Any], dense: dict[str, Any]) -> None:
    """Replaces a cell's pictures by how they stand to the dense, resident ones."""
    pictures, reference = cell.pop("pictures"), load_reference()
    differences = [psnr_db(pixels(data), pixels(dense["pictures"][prompt])) for prompt, data in pictures.items()]
    cell["psnr_db"] = {"mean": round(statistics.mean(differences), 1), "least": round(min(differences), 1)}
    nearest = {prompt: reference.nearest(Image.open(io.BytesIO(data)), 1)[0].names for prompt, data in pictures.items()}
    cell["recognised"] = sum(PROMPTS[prompt] in names for prompt, names in nearest.items())
    cell["shows"] = [names[0] for names in nearest.values()]
    cell["time_ratio"] = round(cell.pop("picture_s") / dense["picture_s"], 2)


def psnr_db(one: np.ndarray, other: np.ndarray) -> float:
    """Peak signal to noise of 8-bit pictures; 100 for equal ones."""
    error = float(np.square(one - other).mean())
    return SAME_DB if error == 0 else min(SAME_DB, 10 * float(np.log10(255**2 / error)))


def pixels(data: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(data)).convert("RGB"), dtype=np.float64)


def described(device: torch.device, cache: Path) -> device_pb2.Device:
    """The device as a worker describes it, its trials of schemes included."""
    message = read_device(device, 0)
    Probes(device, device_name(device), versions(), cache).describe(message)
    return message


def cells(device: torch.device, message: device_pb2.Device, repeats: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields every cell by name, dense and resident first."""
    for scheme in SCHEMES:
        for tier in TIERS:
            name = f"{scheme.lower()} {tier.lower()}"
            try:
                yield name, measure(planned(message, scheme, tier), device, repeats)
            except DarkroomError as refusal:
                yield name, {"refused": refusal.message}


def sheet(rows: dict[str, list[bytes]]) -> Image.Image:
    """The pictures of resident cells, a row a scheme."""
    width = max(len(pictures) for pictures in rows.values())
    canvas = Image.new("RGB", (width * SIDE, len(rows) * SIDE))
    for row, pictures in enumerate(rows.values()):
        for column, data in enumerate(pictures):
            canvas.paste(Image.open(io.BytesIO(data)).convert("RGB"), (column * SIDE, row * SIDE))
    return canvas


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", help="cpu, cuda:0")
    parser.add_argument("--threads", type=int, default=1, help="of the processor")
    parser.add_argument("--repeats", type=int, default=3, help="pictures of which the fastest counts")
    parser.add_argument("--save", type=Path, help="write the figures here as JSON, and the sheet beside them as WebP")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    device = choose_device(options.device)
    figures: dict[str, Any] = {**describe_machine(), "device": device_name(device), "threads": options.threads}
    figures["cells"] = {}
    dense: dict[str, Any] = {}
    rows: dict[str, list[bytes]] = {}
    for name, cell in cells(device, described(device, WorkerSettings().worker_cache_dir), options.repeats):
        if "refused" not in cell:
            dense = dense or dict(cell)
            if name.endswith(" none"):
                rows[name] = list(cell["pictures"].values())
            compare(cell, dense)
        figures["cells"][name] = cell
        print(f"{name:24} {row_of(cell)}", flush=True)
        if options.save:
            options.save.write_text(json.dumps(figures, indent=1) + "\n")
            sheet(rows).save(options.save.with_suffix(".webp"), quality=85, method=6)
    return 0


def row_of(cell: dict[str, Any]) -> str:
    """One line for people."""
    if "refused" in cell:
        return f"refused: {cell['refused']}"
    psnr = f"PSNR {cell['psnr_db']['mean']:5.1f} dB, least {cell['psnr_db']['least']:5.1f}"
    shown = f"{cell['recognised']} of {len(PROMPTS)} recognised"
    return f"{cell['weight_bytes'] / 1e6:6.1f} MB  {psnr}  {shown}  time x {cell['time_ratio']}"


if __name__ == "__main__":
    sys.exit(main())
