"""FLUX.1 dev at full size through the worker's engine, beside stock diffusers reading the same files.

Invariant: stock diffusers and the engine get the same prompt, seed and size; the reference picture is stock diffusers'.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from bench.device import flux_on_disk
from bench.device.engine import EngineHere, Figures, time_pictures
from bench.device.measuring import settle
from darkroom.v1 import checkpoint_pb2, device_pb2, plan_pb2

MODEL = "flux.1-dev"
GB = 10**9
FEW, MANY = 4, 28
OFF, MAX, BALANCED = plan_pb2.SPEED_MODE_OFF, plan_pb2.SPEED_MODE_MAX, plan_pb2.MEMORY_MODE_BALANCED
DENSE, FP8, INT8 = device_pb2.SCHEME_NONE, device_pb2.SCHEME_FP8, device_pb2.SCHEME_INT8
STORAGE = device_pb2.SCHEME_FP8_STORAGE
# The wishes of each cell.
CELLS: dict[str, dict[str, int]] = {
    "bf16, off": {"scheme": DENSE, "speed_mode": OFF},
    "bf16, default": {"scheme": DENSE},
    "fp8, default": {"scheme": FP8},
    "fp8, max": {"scheme": FP8, "speed_mode": MAX},
    "int8, default": {"scheme": INT8},
    "fp8 storage": {"scheme": STORAGE},
    "fp8 storage in groups": {"scheme": STORAGE, "memory_mode": BALANCED},
    "bf16, text encoders leave": {"scheme": DENSE, "speed_mode": OFF},
}
SLOW = ("fp8 storage in groups",)


class FluxCells:
    """The pipeline on disk, read by both.

    Args:
        engine: of the worker.
        folder: of the pipeline.
        device: of both.
        side: of the picture, in pixels.
    """

    def __init__(self, engine: EngineHere, folder: Path, device: torch.device, side: int = 1024) -> None:
        self._engine, self._folder, self._device, self._side = engine, folder, device, side
        self._expected: Any = None

    def stock(self) -> Figures:
        """Stock diffusers: cold load, pictures, and the picture that others are held against."""
        flux_on_disk.drop_page_cache(self._folder)
        pipeline, cold_s = flux_on_disk.read(self._folder, self._device)
        figures = {"cold_load_s": round(cold_s, 2), **self._time_stock(pipeline)}
        del pipeline
        settle()
        return figures

    def _time_stock(self, pipeline: Any) -> Figures:
        figures = time_pictures(lambda steps: flux_on_disk.paint(pipeline, steps, self._side), FEW, MANY)
        self._expected = np.asarray(flux_on_disk.paint(pipeline, FEW, self._side))
        return figures

    def stock_cold_again(self) -> Figures:
        """Stock diffusers' cold load once more, for what two readings differ by."""
        flux_on_disk.drop_page_cache(self._folder)
        pipeline, cold_s = flux_on_disk.read(self._folder, self._device)
        del pipeline
        settle()
        return {"cold_load_s": round(cold_s, 2)}

    def measure(self, cell: str) -> Figures:
        """Loads as the cell says, the reference cold; times pictures."""
        if cell == "bf16, off":
            flux_on_disk.drop_page_cache(self._folder)
        figures = self._engine.load(self._plan(cell))
        many = FEW + 4 if cell in SLOW else MANY
        figures |= time_pictures(lambda steps: self._paint(steps), FEW, many, repeats=1 if cell in SLOW else 2)
        picture = np.asarray(Image.open(io.BytesIO(self._paint(FEW).data)).convert("RGB"))
        if self._expected is not None:
            figures["equals_stock"] = bool(np.array_equal(picture, self._expected))
            figures["mean_difference"] = round(float(np.abs(picture.astype(int) - self._expected).mean()), 3)
        return figures

    def _plan(self, cell: str) -> plan_pb2.Plan:
        source = checkpoint_pb2.CheckpointSource(kind=checkpoint_pb2.CHECKPOINT_KIND_DENSE, path=str(self._folder))
        wishes: dict[str, Any] = {**CELLS[cell], "source": source}
        if cell != "bf16, text encoders leave":
            return self._engine.plan(MODEL, **wishes)
        # With so much taken by others that the text encoders have to leave.
        for taken in range(60, 140):
            found = self._engine.plan(MODEL, foreign_bytes=taken * GB, **wishes)
            if found.offload == plan_pb2.OFFLOAD_TIER_ENCODERS:
                return found
        raise RuntimeError("no amount of foreign memory has the text encoders leave")

    def _paint(self, steps: int) -> Any:
        return self._engine.paint(
            model=MODEL,
            prompt=flux_on_disk.PROMPT,
            width=self._side,
            height=self._side,
            steps=steps,
            guidance=3.5,
            seed=flux_on_disk.SEED,
        )


def cells(flux: FluxCells) -> Iterator[tuple[str, float, Callable[[], Figures]]]:
    """Yields name, the seconds that it takes at most, and what measures it."""
    yield "stock diffusers", 60, flux.stock
    for name in CELLS:
        yield name, 75, lambda name=name: flux.measure(name)
        if name == "bf16, off":
            yield "stock diffusers, cold load again", 30, flux.stock_cold_again
