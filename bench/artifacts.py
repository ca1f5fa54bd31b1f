"""What an artifact saves: bytes, time and peak memory of loading one, beside the dense weights and a mapped torch.load.

    python -m bench.artifacts --device cuda:0                                   FLUX.1 dev's denoiser in fp8
    python -m bench.artifacts --architecture emoji-transformer --scheme int8    small, on the processor
    python -m bench.artifacts --device cuda:0 --save bench/results/artifacts.json

Weights are random and at full size; they are written to `--folder`, built by the builder's own code, and loaded by the
worker's. "Cold" is read after its pages were dropped, "hashed" checks every byte on the way, as a first load does. All
in one run, so that ratios hold on a shared machine; the median of `--repeats`.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import json
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from torch import nn

from bench.device.building import build
from bench.device.flux_on_disk import drop_page_cache
from bench.machine import describe_machine
from darkroom.artifacts.folder import LocalArtifact, open_folder
from darkroom.artifacts.names import stem_of
from darkroom.knowledge import Catalogue, load_catalogue
from darkroom.modeling.artifacts.outline import skeleton_of
from darkroom.modeling.artifacts.reading import fill, load_artifact
from darkroom.modeling.dense import find_class, read_folder
from darkroom.v1 import build_pb2, checkpoint_pb2, device_pb2, plan_pb2
from services.checkpoint_builder.making.component import make, open_dense
from services.checkpoint_builder.making.source import DenseSource
from services.checkpoint_builder.order import Part, Task

BASE, COMPONENT, BFLOAT16 = "bench/model", "transformer", torch.bfloat16


def timed(device: torch.device, work: Callable[[], Any], repeats: int, before: Callable[[], None]) -> dict[str, float]:
    """Returns the median of seconds, and the most bytes that the device held."""
    seconds, peaks = [], [0]
    for _ in range(repeats):
        gc.collect()
        before()
        if device.type == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(device)
        began = time.perf_counter()
        kept = work()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
            peaks.append(torch.cuda.max_memory_allocated(device))
        seconds.append(time.perf_counter() - began)
        del kept
    return {"seconds": statistics.median(seconds), "peak_device_bytes": max(peaks)}


def part_of(catalogue: Catalogue, architecture: str, scheme: device_pb2.Scheme.ValueType) -> Part:
    """Returns what the builder is told to make."""
    recipe = catalogue.recipe(architecture, scheme)
    if recipe is None:
        raise SystemExit(f"{architecture} has no recipe for this scheme")
    return Part(
        name=COMPONENT,
        role=plan_pb2.COMPONENT_ROLE_DENOISER,
        architecture=catalogue.architectures[architecture],
        scheme=scheme,
        recipe=recipe,
        compute_type=plan_pb2.COMPUTE_TYPE_BFLOAT16,
        source=checkpoint_pb2.CheckpointSource(),
        is_apart=True,
        stem=stem_of(BASE, COMPONENT, scheme),
    )


def make_artifact(catalogue: Catalogue, part: Part, dense: Path, folder: Path, device: torch.device) -> None:
    """Builds the artifact as the builder does."""
    library, _, class_name = part.architecture.class_name.partition(":")
    kind = find_class(library, class_name, part.name)
    source = DenseSource(kind, library, dense, None, dense.parent, BASE, "")
    task = Task(build_pb2.BuildOrder(), next(iter(catalogue)), BASE, (part,))
    folder.mkdir(exist_ok=True)
    with ThreadPoolExecutor(2) as pool:
        make(task, open_dense(part, source), folder, device, pool, lambda progress: None)


def mapped_load(file: Path, artifact: LocalArtifact, device: torch.device) -> nn.Module:
    """The same state dict by a mapped torch.load, assigned to the same skeleton."""
    manifest = artifact.manifest
    module = skeleton_of(manifest.library, manifest.class_name, manifest.config, BFLOAT16)
    state = torch.load(file, weights_only=True, mmap=True)
    placed = {name: tensor.to(device) for name, tensor in state.items()}
    return fill(module, placed, manifest.ties, manifest.scheme, manifest.recipe, BFLOAT16, device)


def copy_speed(dense: Path, scratch: Path) -> float:
    """Returns bytes a second of a plain copy that ends on the disk, from dropped pages."""
    drop_page_cache(dense)
    began, size = time.perf_counter(), 0
    for file in dense.glob("*.safetensors"):
        shutil.copyfile(file, scratch)
        with scratch.open("rb") as copied:
            os.fsync(copied.fileno())
        size += file.stat().st_size
    seconds = time.perf_counter() - began
    scratch.unlink()
    return size / seconds


def measure(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Writes, builds and loads; returns all figures."""
    catalogue, device = load_catalogue(), torch.device(arguments.device)
    part = part_of(catalogue, arguments.architecture, device_pb2.Scheme.Value(f"SCHEME_{arguments.scheme.upper()}"))
    dense, made = folder / "dense", folder / "made"
    build(catalogue, arguments.architecture, device).save_pretrained(dense, max_shard_size="10GB")  # type: ignore[operator]
    os.sync()
    dense_bytes = sum(file.stat().st_size for file in dense.glob("*.safetensors"))
    speed = copy_speed(dense, folder / "copy")
    building = timed(
        device, lambda: make_artifact(catalogue, part, dense, made, device), 1, lambda: drop_page_cache(dense)
    )
    artifact = open_made(made, part.stem)
    known, library = folder / "verified.json", part.architecture.class_name.partition(":")
    kind = find_class(library[0], library[2], COMPONENT)
    reading: dict[str, tuple[Callable[[], Any], Path | None]] = {
        "dense, cold": (lambda: read_folder(kind, dense, BFLOAT16, COMPONENT).to(device), dense),
        "artifact, cold, hashed": (lambda: load_artifact(artifact, BFLOAT16, device), made),
        "artifact, cold": (lambda: load_artifact(artifact, BFLOAT16, device, known), made),
        "artifact, warm": (lambda: load_artifact(artifact, BFLOAT16, device, known), None),
        "torch.load mapped, warm": (lambda: mapped_load(folder / "state.pt", artifact, device), None),
    }
    loaded = load_artifact(artifact, BFLOAT16, torch.device("cpu"), known)
    torch.save({name: tensor.detach() for name, tensor in loaded.state_dict().items()}, folder / "state.pt")
    del loaded
    loads = {
        name: timed(device, work, arguments.repeats, (lambda cold=cold: drop_page_cache(cold)) if cold else gc.collect)
        for name, (work, cold) in reading.items()
    }
    return {
        "architecture": arguments.architecture,
        "scheme": arguments.scheme,
        "dense_bytes": dense_bytes,
        "artifact_bytes": artifact.manifest.size_bytes,
        "copy_bytes_per_second": speed,
        "build": {**building, "bytes_per_second": dense_bytes / building["seconds"]},
        "loads": loads,
        "ratios": ratios(loads, artifact.manifest.size_bytes / dense_bytes, dense_bytes / building["seconds"] / speed),
    }


def open_made(folder: Path, stem: str) -> LocalArtifact:
    """Opens what was built, by its own id: it has passed no gates."""
    return open_folder(folder, stem, hashlib.sha256((folder / f"{stem}.json").read_bytes()).hexdigest())


def ratios(loads: dict[str, dict[str, float]], bytes_ratio: float, build_ratio: float) -> dict[str, float]:
    """Returns what is compared."""
    dense, cold = loads["dense, cold"], loads["artifact, cold"]
    found = {
        "bytes": bytes_ratio,
        "cold load": cold["seconds"] / dense["seconds"],
        "cold load, hashed": loads["artifact, cold, hashed"]["seconds"] / dense["seconds"],
        "warm load to mapped torch.load": loads["artifact, warm"]["seconds"]
        / loads["torch.load mapped, warm"]["seconds"],
        "build to copy, bytes a second": build_ratio,
    }
    if dense["peak_device_bytes"]:
        found["peak of loading"] = cold["peak_device_bytes"] / dense["peak_device_bytes"]
    return found


def main() -> None:
    """Measures, prints and saves."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--architecture", default="flux.1")
    parser.add_argument("--scheme", default="fp8")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--folder", help="on the disk to measure; a temporary one by default")
    parser.add_argument("--save", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        result = measure(arguments, Path(folder))
    for name, load in result["loads"].items():
        peak = f", peak {load['peak_device_bytes'] / 2**30:.2f} GiB" if load["peak_device_bytes"] else ""
        print(f"{name:26} {load['seconds']:8.3f} s{peak}")
    building = result["build"]
    print(f"{'build':26} {building['seconds']:8.3f} s, peak {building['peak_device_bytes'] / 2**30:.2f} GiB")
    for name, ratio in result["ratios"].items():
        print(f"{name:32} {ratio:6.3f}")
    if arguments.save:
        arguments.save.write_text(json.dumps({"machine": describe_machine(), **result}, indent=1) + "\n")


if __name__ == "__main__":
    main()
