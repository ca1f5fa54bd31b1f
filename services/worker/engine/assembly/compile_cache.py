"""Compiled code that outlives the process: one folder for all that decides what code is made.

Inductor keeps its graphs and Triton its kernels there, each under its own hash. Invariants: code that was made under
other versions, on another device or driver, or for another recipe lies in another folder and is never looked at; the
whole stays within its bytes.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import json
import os
import platform
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch._dynamo.utils import counters

from darkroom.rpc.logs import log
from darkroom.v1 import plan_pb2
from services.worker.checkpoint_files import write_json
from services.worker.engine.assembly.stage import Assembly
from services.worker.engine.device import device_name

# Where Inductor and Triton look: both ask their environment at every use.
VARIABLES = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
PACKAGES = ("torch", "triton", "torchao", "diffusers", "transformers", "flash-attn", "sageattention", "xformers")
MANIFEST = "fingerprint.json"
DRIVER_FILE = Path("/proc/driver/nvidia/version")


def fingerprint(assembly: Assembly) -> dict[str, Any]:
    """Returns all that decides what code is made, readable."""
    plan, device = assembly.plan, assembly.device
    parts = [_component(part) for part in plan.components]
    return {
        "versions": {name: _version(name) for name in PACKAGES},
        "python": sys.version.split()[0],
        "machine": platform.machine(),
        "cuda": torch.version.cuda or torch.version.hip or "",
        "device": device_name(device),
        "capability": list(torch.cuda.get_device_capability(device)) if device.type == "cuda" else [],
        "driver": _driver(device),
        "pipeline": plan.pipeline_class,
        "components": parts,
        "compute_type": plan.compute_type,
        "offload": plan.offload,
        "speed_mode": plan.speed_mode,
        "attention": next((knob.engaged for knob in assembly.engagements if knob.knob == "attention"), ""),
        "step_cache": assembly.cache_kind,
        "compile": plan.compile.SerializeToString(deterministic=True).hex(),
        "float32_precision": torch.get_float32_matmul_precision(),
    }


def use_cache(assembly: Assembly, most_bytes: int) -> tuple[str, Callable[[], None]]:
    """Has compiled code read from, and written to, the folder of this assembly's fingerprint.

    Args:
        assembly: about to be compiled; its flags are set.
        most_bytes: of all folders together; those used longest ago go.

    Returns:
        Why there is no cache, empty where there is; and what puts the environment back.
    """
    before = {name: os.environ.get(name) for name in VARIABLES}
    facts = fingerprint(assembly)
    text = json.dumps(facts, sort_keys=True)
    root = assembly.settings.worker_cache_dir / "compiled"
    folder = root / hashlib.sha256(text.encode()).hexdigest()[:32]
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_json(folder / MANIFEST, facts)
        os.utime(folder)
        trim(root, most_bytes, folder)
    except OSError as failure:
        return f"the cache's folder can't be written ({failure.strerror or failure})", lambda: None
    for name in VARIABLES:
        os.environ[name] = str(folder / name.partition("_")[0].lower())
    return "", functools.partial(_put_back, before)


def lookups() -> tuple[int, int]:
    """(found, made) graphs of Inductor in this process so far."""
    counts = counters["inductor"]
    return int(counts["fxgraph_cache_hit"]), int(counts["fxgraph_cache_miss"]) + int(counts["fxgraph_cache_bypass"])


def trim(root: Path, most_bytes: int, kept: Path) -> None:
    """Removes the folders used longest ago until all of them fill no more than `most_bytes`; never `kept`."""
    folders = sorted((child for child in root.iterdir() if child.is_dir()), key=lambda child: child.stat().st_mtime)
    sizes = {folder: _size(folder) for folder in folders}
    total = sum(sizes.values())
    for folder in folders:
        if total <= most_bytes:
            return
        if folder != kept:
            shutil.rmtree(folder, ignore_errors=True)
            total -= sizes[folder]
            log.info("compiled_code_removed", folder=folder.name, freed_bytes=sizes[folder])


def _size(folder: Path) -> int:
    total = 0
    for file in folder.rglob("*"):
        try:
            total += file.lstat().st_size
        except OSError:  # another worker's temporary file
            continue
    return total


def _put_back(before: dict[str, str | None]) -> None:
    for name, value in before.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def _component(part: plan_pb2.ComponentPlan) -> list[Any]:
    recipe = part.recipe.SerializeToString(deterministic=True).hex()
    return [part.name, part.class_name, part.scheme, part.compute_type, recipe]


@functools.cache
def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _driver(device: torch.device) -> str:
    """The driver's own line on an NVIDIA device; the kernel's release elsewhere, which holds the drivers."""
    if device.type == "cuda" and DRIVER_FILE.exists():
        return DRIVER_FILE.read_text().splitlines()[0]
    return platform.release()
