"""What a job costs beside the engine's own time, and what the stack costs against the bare pipeline.

    python -m bench.overhead                 all of it, on the bundled emoji model
    python -m bench.overhead --jobs 500 --save bench/results/overhead.json

Measures, job after job through the client, gateway, planner, worker and Redis of one machine:

- overhead: from the call of `submit` to the arrival of the terminal event, less the engine's own time for the job: from
  the request's arrival in the engine to the finished file. Once with a deterministic engine, so that the processor is
  not busy with the picture, and once with the real one.
- first event: from the call of `submit` to the first progress that comes from the worker.
- planner: one Plan call.
- ratio: a job through the stack over the same pipeline called in this process, by turns, and who begins changes with
  every pair. The call in this process gives a picture as an object; what a script takes to make a PNG of it is told
  beside it and is not in the ratio. The job ends with a PNG that is stored, fetched and checked. The prompt is always
  the same, so that the engine encodes it once: the ratio has what the stack costs and what its engine saves.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import json
import operator
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track
from rich.table import Table

from bench.machine import describe_machine
from bench.running import ROOT, running_stack
from darkroom.client import AsyncClient
from darkroom.rpc.channels import open_channel
from darkroom.v1 import generation_pb2, job_pb2, plan_pb2, planner_service_pb2, planner_service_pb2_grpc

REHEARSAL = {"DARKROOM_WORKER_ENGINE_MODULE": "tests.engines.rehearsal"}
# Milliseconds that the figures are held against.
BARS = {
    "overhead p50": 15.0,
    "overhead p99": 60.0,
    "first event p99": 50.0,
    "planner p99": 5.0,
}
RATIO_BAR = 1.05
PAIRED = "median of the pairs' ratios"
WARM_UP_JOBS = 5
WARM_UP_PAIRS = 2
PROMPT = "a red apple"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=200, help="jobs for the overhead and calls of the planner")
    parser.add_argument("--pictures", type=int, default=30, help="pairs of pictures for the ratio")
    parser.add_argument("--save", type=Path, help="write the figures here as JSON")
    options = parser.parse_args()
    figures = asyncio.run(measure(options.jobs, options.pictures))
    report(figures)
    if options.save:
        options.save.write_text(json.dumps(figures, indent=2) + "\n")
    return 0


async def measure(num_jobs: int, num_pictures: int) -> dict[str, Any]:
    """Returns all figures, in milliseconds, with the machine they were measured on."""
    figures: dict[str, Any] = {"machine": describe_machine()}
    with running_stack({**REHEARSAL, "DARKROOM_WORKER_DEVICE": "cpu"}) as stack:
        figures["rehearsal engine"] = await measure_jobs(stack["gateway"]["address"], num_jobs)
        figures["planner"] = await measure_planner(stack["planner"]["address"], num_jobs)
    with running_stack({"DARKROOM_WORKER_DEVICE": "cpu"}) as stack:
        figures["emoji engine"] = await measure_jobs(stack["gateway"]["address"], max(20, num_jobs // 5))
        figures["ratio"] = await measure_ratio(stack["gateway"]["address"], num_pictures)
    return figures


async def measure_jobs(address: str, num_jobs: int) -> dict[str, dict[str, float]]:
    """Runs jobs one after the other; returns overhead and time to the first event."""
    overheads, firsts = [], []
    async with AsyncClient(address) as client:
        for index in track(range(num_jobs + WARM_UP_JOBS), description="jobs through the stack"):
            overhead_ms, first_ms = await _time_job(client, seed=index)
            if index >= WARM_UP_JOBS:
                overheads.append(overhead_ms)
                firsts.append(first_ms)
    return {"overhead": quantiles(overheads), "first event": quantiles(firsts)}


async def _time_job(client: AsyncClient, seed: int) -> tuple[float, float]:
    began = time.perf_counter()
    first_ms = 0.0
    job = await client.submit(PROMPT, model="emoji", steps=4, seed=seed)
    async for event in client.watch(job.id):
        if not first_ms and _comes_from_worker(event):
            first_ms = _since(began)
        if event.HasField("job"):
            job = event.job
    if job.state != job_pb2.JOB_STATE_SUCCEEDED:
        raise RuntimeError(f"job {job.id} ended with {job.error.message}")
    return _since(began) - job.output.engine_time.ToNanoseconds() / 1e6, first_ms


def _comes_from_worker(event: job_pb2.JobEvent) -> bool:
    progress = event.progress if event.HasField("progress") else event.job.progress
    return progress.phase > generation_pb2.PHASE_QUEUED


async def measure_planner(address: str, num_calls: int) -> dict[str, float]:
    """Times Plan for the emoji model on a described processor."""
    request = planner_service_pb2.PlanRequest(model="emoji")
    request.device.id = "cpu"
    request.device.kind = 1
    request.device.memory.total_bytes = request.device.memory.free_bytes = 24 << 30
    async with open_channel(address) as channel:
        stub = planner_service_pb2_grpc.PlannerServiceStub(channel)
        return await time_calls(lambda: stub.Plan(request, timeout=5), num_calls)


async def time_calls(call: Callable[[], Awaitable[object]], count: int) -> dict[str, float]:
    """Returns the quantiles of `count` calls in milliseconds, after a warm-up."""
    times = []
    for index in range(count + WARM_UP_JOBS):
        began = time.perf_counter()
        await call()
        if index >= WARM_UP_JOBS:
            times.append(_since(began))
    return quantiles(times)


async def measure_ratio(address: str, num_pictures: int) -> dict[str, float]:
    """Makes pictures by turns through the stack and by the same call of the pipeline in this process.

    Returns:
        Medians in milliseconds, their ratio, and the median of the pairs' own ratios, which a machine that becomes
        slower or faster meanwhile moves less.
    """
    bare: list[float] = []
    saved: list[float] = []
    through: list[float] = []

    async def paint_there(seed: int) -> None:
        began = time.perf_counter()
        await client.generate(PROMPT, model="emoji", seed=seed)
        through.append(_since(began))

    async def paint_here(seed: int) -> None:
        began = time.perf_counter()
        picture = (await loop.run_in_executor(thread, paint, PROMPT, seed)).images[0]
        bare.append(_since(began))
        picture.save(io.BytesIO(), "PNG")
        saved.append(_since(began))

    loop = asyncio.get_running_loop()
    # One thread for all that computes here: with a second one libgomp has more threads than cores and stops spinning.
    with ThreadPoolExecutor(1) as thread:
        async with AsyncClient(address) as client:
            planned = await client.plan("emoji")
            paint = await loop.run_in_executor(thread, load_pipeline, planned.plan.compute_type)
            for seed in track(range(num_pictures + WARM_UP_PAIRS), description="pairs of pictures"):
                for turn in (paint_here, paint_there) if seed % 2 else (paint_there, paint_here):
                    await turn(seed)
    return compare(bare[WARM_UP_PAIRS:], saved[WARM_UP_PAIRS:], through[WARM_UP_PAIRS:])


def compare(bare: Sequence[float], saved: Sequence[float], through: Sequence[float]) -> dict[str, float]:
    """Returns the medians of pairs in milliseconds, and what they are to each other."""
    bare_ms, through_ms = statistics.median(bare), statistics.median(through)
    return {
        "bare ms": bare_ms,
        "bare and saved ms": statistics.median(saved),
        "through the stack ms": through_ms,
        "ratio": through_ms / bare_ms,
        PAIRED: statistics.median(map(operator.truediv, through, bare)),
        "pairs": len(bare),
    }


def load_pipeline(compute_type: plan_pb2.ComputeType.ValueType) -> Callable[[str, int], Any]:
    """Returns a function that paints with stock diffusers, in the type that the worker computes in."""
    import torch
    from diffusers import FluxPipeline

    from darkroom.knowledge import load_catalogue

    defaults = load_catalogue().message("emoji").defaults
    dtype = torch.bfloat16 if compute_type == plan_pb2.COMPUTE_TYPE_BFLOAT16 else torch.float32
    pipeline = FluxPipeline.from_pretrained(ROOT / "models" / "emoji", torch_dtype=dtype)
    pipeline.set_progress_bar_config(disable=True)

    def paint(prompt: str, seed: int) -> Any:
        with torch.inference_mode():
            return pipeline(
                prompt,
                negative_prompt=defaults.negative_prompt,
                true_cfg_scale=defaults.guidance,
                width=defaults.width,
                height=defaults.height,
                num_inference_steps=defaults.steps,
                max_sequence_length=32,
                generator=torch.Generator().manual_seed(seed),
            )

    return paint


def quantiles(times_ms: Sequence[float]) -> dict[str, float]:
    """Returns median, 99th percentile and extremes."""
    cuts = statistics.quantiles(times_ms, n=100, method="inclusive")
    return {"p50": cuts[49], "p99": cuts[98], "least": min(times_ms), "most": max(times_ms), "count": len(times_ms)}


def report(figures: dict[str, Any]) -> None:
    """Prints the figures beside what they are held against."""
    table = Table("figure", "p50 ms", "p99 ms", "bar", title="What a job costs beside the engine's time")
    for engine in ("rehearsal engine", "emoji engine"):
        for figure, values in figures[engine].items():
            bars = " / ".join(f"{key[-3:]} ≤ {bar:g}" for key, bar in BARS.items() if key.startswith(figure))
            table.add_row(f"{figure}, {engine}", f"{values['p50']:.1f}", f"{values['p99']:.1f}", bars)
    planner = figures["planner"]
    table.add_row("planner call", f"{planner['p50']:.2f}", f"{planner['p99']:.2f}", f"p99 ≤ {BARS['planner p99']:g}")
    console = Console()
    console.print(table)
    ratio = figures["ratio"]
    console.print(
        f"a picture: {ratio['bare ms']:.0f} ms in-process, {ratio['through the stack ms']:.0f} ms through the stack, "
        f"ratio {ratio['ratio']:.3f} (≤ {RATIO_BAR}), by pairs {ratio[PAIRED]:.3f}"
    )


def _since(began: float) -> float:
    return (time.perf_counter() - began) * 1000


if __name__ == "__main__":
    sys.exit(main())
