"""Measures what the planner predicts, on a real GPU at full size with random weights: bytes at rest and peaks.

    python -m bench.device_memory                                  every case: about nine minutes on an idle H200
    python -m bench.device_memory --models flux.1-dev --save bench/results/device_memory.json

Per denoiser and scheme: bytes allocated at rest and the peak while denoising, after a warm-up (quantised ones compiled
by repeated block, as they run; group offload streams blocks). Per VAE and text encoder: the same of one call. Bytes are
those that `torch.cuda` counts as allocated; predicted ones come from the planner's own arithmetic.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

from bench.device.building import build, quantise
from bench.device.measuring import measure_calls, settle
from bench.device.models import MODELS, TEXT_TOKENS, Model
from bench.device.predicting import Prediction
from bench.device.report import memory_table
from bench.machine import describe_machine
from darkroom.knowledge import load_catalogue
from darkroom.modeling.tiles import use_tiles
from darkroom.v1 import device_pb2
from services.planner.description import TILE_SIDE
from services.worker.engine.assembly.placement import stream

CATALOGUE = load_catalogue()
DEVICE = torch.device("cuda:0")
STEPS = 4
BF16, FP8, INT8, STORAGE = (
    device_pb2.SCHEME_NONE,
    device_pb2.SCHEME_FP8,
    device_pb2.SCHEME_INT8,
    device_pb2.SCHEME_FP8_STORAGE,
)
RESIDENT = {"bf16": BF16, "fp8": FP8, "int8": INT8, "fp8 storage": STORAGE}
COMPILED = (FP8, INT8)
STREAMED = {"bf16 in groups": BF16, "fp8 storage in groups": STORAGE}
# Copying to the host and pinning, measured: 1.5 and 2.3 GiB/s.
STREAMED_S_PER_BYTE = 1.4e-9
Figures = dict[str, Any]


class Case(NamedTuple):
    """One measurement."""

    name: str
    # What it takes at most.
    needed_s: float
    measure: Callable[[], Figures]
    predict: Callable[[], Figures]


def measure_resident(model: Model, scheme: device_pb2.Scheme.ValueType) -> Figures:
    """A denoiser that stays on the device."""
    before = torch.cuda.memory_allocated()
    module: Any = build(CATALOGUE, model.denoiser, DEVICE)
    figures: Figures = {}
    if scheme != BF16:
        figures["num_layers"] = quantise(CATALOGUE, module, model.denoiser, scheme, DEVICE).num_layers
    if scheme in COMPILED:
        module.compile_repeated_blocks(fullgraph=True, dynamic=False)
    return figures | measure_calls(
        lambda inputs: module(**inputs, return_dict=False), lambda: model.inputs(DEVICE), STEPS, before
    )


def measure_streamed(model: Model, scheme: device_pb2.Scheme.ValueType) -> Figures:
    """A denoiser whose blocks come from the host as they are needed."""
    before = torch.cuda.memory_allocated()
    module: Any = build(CATALOGUE, model.denoiser, DEVICE)
    if scheme != BF16:
        quantise(CATALOGUE, module, model.denoiser, scheme, DEVICE)
    stream(module.to("cpu"), DEVICE, "block_level")
    figures = measure_calls(
        lambda inputs: module(**inputs, return_dict=False), lambda: model.inputs(DEVICE), STEPS, before
    )
    figures["pinned_bytes"] = torch.cuda.host_memory_stats()["allocated_bytes.current"]
    return figures


def measure_decoding(model: Model, is_tiled: bool) -> Figures:
    """A VAE, in its compute type, decoding whole or in the tiles that plans ask for."""
    before, dtype = torch.cuda.memory_allocated(), Prediction(CATALOGUE, model).dtype(model.vae)
    vae: Any = build(CATALOGUE, model.vae, DEVICE, dtype)
    if is_tiled:
        use_tiles(vae, 0 if model.workload.num_frames > 1 else TILE_SIDE)
    return measure_calls(
        lambda latents: vae.decode(latents, return_dict=False)[0],
        lambda: torch.randn(model.latents, device=DEVICE, dtype=dtype),
        1,
        before,
    )


def measure_encoding(model: Model) -> Figures:
    """A text encoder with a prompt of the full length."""
    before = torch.cuda.memory_allocated()
    module = build(CATALOGUE, model.encoder, DEVICE)
    return measure_calls(
        lambda tokens: module(input_ids=tokens, output_hidden_states=model.keeps_hidden_states),
        lambda: torch.randint(0, 1000, (1, TEXT_TOKENS), device=DEVICE),
        2,
        before,
    )


def cases(names: list[str]) -> Iterator[Case]:
    """Yields every measurement, most telling first."""
    models = [(name, MODELS[name], Prediction(CATALOGUE, MODELS[name])) for name in names]
    for name, model, said in models:
        for word, scheme in RESIDENT.items():
            needed_s = 60 if scheme in COMPILED else 15
            measure, predict = partial(measure_resident, model, scheme), partial(said.resident, scheme)
            yield Case(f"{name} {word}", needed_s, measure, predict)
    for name, model, said in models:
        for is_tiled in (False, True):
            measure, predict = partial(measure_decoding, model, is_tiled), partial(said.decoding, is_tiled)
            yield Case(f"{name} decoding{' in tiles' if is_tiled else ''}", 20, measure, predict)
        yield Case(f"{name} encoding", 20, partial(measure_encoding, model), said.encoding)
    for name, model, said in models:
        for word, scheme in STREAMED.items():
            needed_s = 15 + said.rest_bytes(model.denoiser, scheme) * STREAMED_S_PER_BYTE
            measure, predict = partial(measure_streamed, model, scheme), partial(said.streamed, scheme)
            yield Case(f"{name} {word}", needed_s, measure, predict)


def saved(file: Path | None) -> dict[str, Figures]:
    """Returns the cases that the file holds, against today's predictions."""
    kept = json.loads(file.read_text())["cases"] if file is not None and file.exists() else {}
    predictions = {case.name: case.predict for case in cases(list(MODELS))}
    return {name: figures | predictions[name]() for name, figures in kept.items() if name in predictions}


def save(figures: Figures, file: Path | None) -> None:
    """Writes JSON, and a table beside it."""
    if file is not None:
        file.write_text(json.dumps(figures, indent=2) + "\n")
        file.with_suffix(".md").write_text(memory_table(figures))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="*", default=list(MODELS), choices=list(MODELS), metavar="MODEL")
    parser.add_argument(
        "--only",
        nargs="*",
        metavar="ENDING",
        help="cases that end so ('groups'; none: predict anew); others are kept",
    )
    parser.add_argument("--seconds", type=float, default=600, help="start no case that would end after this long")
    parser.add_argument("--save", type=Path, help="write JSON here after each case, and a table beside it")
    options = parser.parse_args()
    figures: Figures = {"machine": describe_machine(), "cases": {}}
    if options.only is not None:
        figures["cases"] = saved(options.save)
    began = time.perf_counter()
    for case in cases(options.models):
        if options.only is not None and not any(case.name.endswith(ending) for ending in options.only):
            continue
        if time.perf_counter() - began + case.needed_s > options.seconds:
            print(f"no time for {case.name}", flush=True)
            continue
        try:
            measured = case.measure() | case.predict()
        except Exception as failure:  # one case that can't run must not lose the others
            measured = {"failed": f"{type(failure).__name__}: {failure}"[:400]}
        torch.compiler.reset()
        settle()
        figures["cases"][case.name] = measured
        print(f"{time.perf_counter() - began:6.0f} s  {case.name}: {measured}", flush=True)
        save(figures, options.save)
    save(figures, options.save)
    print(memory_table(figures))
    return 0


if __name__ == "__main__":
    sys.exit(main())
