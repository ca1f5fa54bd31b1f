"""What a quantised artifact saves on a real GPU, at FLUX.1 dev's size with random weights.

    python -m bench.device_artifacts --save bench/results/device_artifacts.json    about four minutes

The denoiser is written to disk dense, copied (how fast the disk copies), built into an fp8 artifact as the checkpoint
builder builds, and read: dense and quantised on the GPU; from the artifact, with its hashes known and not; from a state
dict that torch.save wrote and torch.load maps. Cold means dropped from the page cache. The bundled model is built on
the processor and on the GPU, to be compared byte for byte. Takes 65 GB of disk while it copies.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import statistics
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from diffusers import FluxTransformer2DModel

from bench.device import flux_on_disk
from bench.device.building import build, quantise
from bench.device.measuring import settle
from bench.device.models import MODELS
from bench.machine import describe_machine
from darkroom.artifacts.folder import LocalArtifact, open_folder
from darkroom.knowledge import load_catalogue
from darkroom.modeling.artifacts.outline import skeleton_of
from darkroom.modeling.artifacts.reading import load_artifact
from darkroom.v1 import build_pb2, checkpoint_pb2, device_pb2
from services.checkpoint_builder.config import BuilderSettings
from services.checkpoint_builder.making.component import make, open_dense
from services.checkpoint_builder.making.source import find_source
from services.checkpoint_builder.order import read_order

CATALOGUE = load_catalogue()
FP8, INT8 = device_pb2.SCHEME_FP8, device_pb2.SCHEME_INT8
BASE = "black-forest-labs/FLUX.1-dev"
BF16 = torch.bfloat16
GB = 1e9
# (figure, most or least, bound)
BARS = (
    ("cold load: artifact over dense", "most", 0.50),
    ("bytes: artifact over dense", "most", 0.505),
    ("peak GPU memory: artifact over dense", "most", 0.50),
    ("warm load: artifact over torch.load", "most", 0.86),
    ("building over copying", "least", 0.60),
    ("GPU memory of building, GiB", "most", 3.0),
)
Figures = dict[str, Any]


def write_dense(folder: Path, device: torch.device) -> Path:
    """Writes the denoiser as a component's folder, and returns it."""
    module: Any = build(CATALOGUE, "flux.1", device)
    module.save_pretrained(folder / "transformer", safe_serialization=True, max_shard_size="10GB")
    os.sync()
    return folder / "transformer"


def copy_speed(folder: Path) -> float:
    """Returns bytes a second of copying the weights, read from disk and written to it."""
    flux_on_disk.drop_page_cache(folder)
    copies = folder.parent / "copy"
    copies.mkdir()
    began = time.perf_counter()
    for file in weight_files(folder):
        with file.open("rb") as source, (copies / file.name).open("wb") as target:
            shutil.copyfileobj(source, target, 16 << 20)
            target.flush()
            os.fsync(target.fileno())
    seconds = time.perf_counter() - began
    shutil.rmtree(copies)
    return total_bytes(folder) / seconds


def build_artifact(
    model: str, scheme: device_pb2.Scheme.ValueType, source: Path, base: str, into: Path, device: torch.device
) -> tuple[LocalArtifact, float]:
    """Builds as the checkpoint builder does, without gates; returns the artifact and the seconds it took."""
    into.mkdir(parents=True)
    order = build_pb2.BuildOrder(model=model, scheme=scheme, base=base, skips_gates=True)
    order.source.kind, order.source.path = checkpoint_pb2.CHECKPOINT_KIND_DENSE, str(source)
    settings = BuilderSettings(builder_source_paths=str(source.parent))
    task = read_order(order, CATALOGUE, settings)
    began = time.perf_counter()
    with ThreadPoolExecutor(2) as pool, torch.inference_mode():
        found = find_source(task, task.parts[0], settings, lambda done, total: None)
        dense = open_dense(task.parts[0], found)
        manifest = make(task, dense, into, device, pool, lambda progress: None)
    seconds = time.perf_counter() - began
    return open_folder(into, task.parts[0].stem, manifest.id), seconds


def timed(load: Callable[[], Any], folder: Path | None) -> tuple[Any, Figures]:
    """Loads, cold where a folder is named; returns what was loaded, seconds and the peak of GPU memory."""
    if folder is not None:
        flux_on_disk.drop_page_cache(folder)
    settle()
    began = time.perf_counter()
    module = load()
    torch.cuda.synchronize()
    return module, {
        "seconds": round(time.perf_counter() - began, 2),
        "peak_bytes": torch.cuda.max_memory_allocated(),
    }


def load_dense(folder: Path, device: torch.device) -> Any:
    """Stock diffusers, whole on the GPU, then quantised there."""
    module = FluxTransformer2DModel.from_pretrained(folder, torch_dtype=BF16).to(device)
    quantise(CATALOGUE, module, "flux.1", FP8, device)
    return module


def load_mapped(file: Path, artifact: LocalArtifact, device: torch.device) -> Any:
    """The same state dict by torch.load, mapped, put into a skeleton."""
    manifest = artifact.manifest
    module = skeleton_of(manifest.library, manifest.class_name, manifest.config, BF16)
    state = torch.load(file, map_location=str(device), mmap=True, weights_only=False)
    module.load_state_dict(state, assign=True)
    return module.to(device)


def measure_flux(folder: Path, device: torch.device) -> Figures:
    """Returns everything about FLUX.1's size."""
    dense = write_dense(folder, device)
    figures: Figures = {"dense_bytes": total_bytes(dense), "copy_bytes_per_s": round(copy_speed(dense))}
    flux_on_disk.drop_page_cache(dense)
    settle()
    artifact, seconds = build_artifact("flux.1-dev", FP8, dense, BASE, folder / "artifact", device)
    figures |= {"build_s": round(seconds, 2), "build_gpu_bytes": torch.cuda.max_memory_reserved()}
    figures["artifact_bytes"] = sum(file.size_bytes for file in artifact.manifest.files)
    module, figures["dense, cold"] = timed(lambda: load_dense(dense, device), dense)
    expected = forward(module, device)
    del module
    memory = folder / "verified"
    for name, is_cold in (("artifact, cold, hashed", True), ("artifact, cold", True), ("artifact, warm", False)):
        module, figures[name] = timed(
            lambda: load_artifact(artifact, BF16, device, memory), folder / "artifact" if is_cold else None
        )
        figures[name]["equals_dense"] = bool(torch.equal(forward(module, device), expected))
        if name != "artifact, warm":
            del module
    torch.save(module.state_dict(), folder / "state.pt")
    del module
    return figures | compare_warm(folder, artifact, memory, device)


def compare_warm(folder: Path, artifact: LocalArtifact, memory: Path, device: torch.device) -> Figures:
    """Returns seconds of warm loads, by turns."""
    ours, theirs = [], []
    for _ in range(4):
        module, taken = timed(lambda: load_mapped(folder / "state.pt", artifact, device), None)
        theirs.append(taken["seconds"])
        del module
        module, taken = timed(lambda: load_artifact(artifact, BF16, device, memory), None)
        ours.append(taken["seconds"])
        del module
    return {"artifact_warm_s": statistics.median(ours[1:]), "torch_load_warm_s": statistics.median(theirs[1:])}


def forward(module: Any, device: torch.device) -> torch.Tensor:
    """Returns one evaluation on inputs from a fixed seed."""
    torch.manual_seed(0)
    with torch.inference_mode():
        return module(**MODELS["flux.1-dev"].inputs(device), return_dict=False)[0].clone()


def measure_equality(folder: Path, device: torch.device) -> Figures:
    """Whether the processor builds the bundled model's artifacts as the GPU does, byte for byte."""
    source = Path(__file__).resolve().parents[1] / "models" / "emoji"
    same: Figures = {}
    for word, scheme in (("fp8", FP8), ("int8", INT8)):
        digests = []
        for place in (torch.device("cpu"), device):
            into = folder / f"{word} {len(digests)}"
            build_artifact("emoji", scheme, source, "emoji", into, place)
            digests.append(digest(into))
        same[f"{word} built alike on processor and GPU"] = digests[0] == digests[1]
    return same


def digest(folder: Path) -> str:
    """Returns the hash of all files that were built."""
    told = hashlib.sha256()
    for file in sorted(folder.iterdir()):
        told.update(file.name.encode() + file.read_bytes())
    return told.hexdigest()


def weight_files(folder: Path) -> list[Path]:
    """Returns the weights of a folder."""
    return sorted(folder.glob("*.safetensors"))


def total_bytes(folder: Path) -> int:
    """Returns their bytes."""
    return sum(file.stat().st_size for file in weight_files(folder))


def ratios(figures: Figures) -> dict[str, float]:
    """Returns what the bars are about."""
    dense, cold = figures["dense, cold"], figures["artifact, cold, hashed"]
    build_rate = figures["dense_bytes"] / figures["build_s"]
    return {
        "cold load: artifact over dense": cold["seconds"] / dense["seconds"],
        "bytes: artifact over dense": figures["artifact_bytes"] / figures["dense_bytes"],
        "peak GPU memory: artifact over dense": cold["peak_bytes"] / dense["peak_bytes"],
        "warm load: artifact over torch.load": figures["artifact_warm_s"] / figures["torch_load_warm_s"],
        "building over copying": build_rate / figures["copy_bytes_per_s"],
        "GPU memory of building, GiB": figures["build_gpu_bytes"] / 2**30,
    }


def table(results: Figures) -> str:
    """Returns figures and bars in Markdown."""
    machine, found = results["machine"], results["ratios"]
    lines = [
        "# Artifacts on a GPU",
        "",
        f"{machine.get('gpu', machine['processor'])}, torch {machine['torch']}, diffusers {machine['diffusers']}, "
        f"torchao {machine['torchao']}; `{machine['command']}`. FLUX.1 dev's denoiser with random weights, fp8.",
        "",
        "| figure | measured | bar |",
        "|---|---|---|",
        *(f"| {name} | {found[name]:.3f} | at {which} {bound:g} |" for name, which, bound in BARS if name in found),
        "",
        *(f"- {name}: {value}" for name, value in {**results["flux"], **results["equality"]}.items()),
    ]
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("/tmp/darkroom-artifacts"), help="must not exist")
    parser.add_argument("--device", default="cuda:0", help="of torch")
    parser.add_argument("--save", type=Path, help="write the figures here as JSON, and a table beside it")
    options = parser.parse_args()
    device = torch.device(options.device)
    options.folder.mkdir(parents=True)
    results: Figures = {"machine": describe_machine(), "flux": {}, "ratios": {}}
    results["equality"] = measure_equality(options.folder, device)
    results["flux"] = measure_flux(options.folder, device)
    results["ratios"] = ratios(results["flux"])
    if options.save:
        options.save.write_text(json.dumps(results, indent=2) + "\n")
        options.save.with_suffix(".md").write_text(table(results))
    print(table(results))
    shutil.rmtree(options.folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
