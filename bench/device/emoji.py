"""The bundled model in every scheme: how near its pictures are to those of the reference, and what they show.

Invariant: the reference is the dense model uncompiled, with the same seeds.
"""

from __future__ import annotations

import io
import statistics
from typing import Any

from PIL import Image

from bench.device.engine import EngineHere, time_pictures
from darkroom.knowledge import Catalogue
from darkroom.v1 import device_pb2, plan_pb2
from models.emoji.retrieval import load_reference
from services.checkpoint_builder.gates.figures import pixels_of, psnr_db, ssim

OFF = plan_pb2.SPEED_MODE_OFF
SUBJECTS = ("red apple", "cat", "house", "sunflower", "rocket", "pizza", "snowman", "guitar")
# The wishes of each case; the first is what the others are compared with.
CASES: dict[str, dict[str, int]] = {
    "bf16, off": {"scheme": device_pb2.SCHEME_NONE, "speed_mode": OFF},
    "bf16, default": {"scheme": device_pb2.SCHEME_NONE},
    "fp8, default": {"scheme": device_pb2.SCHEME_FP8},
    "int8, default": {"scheme": device_pb2.SCHEME_INT8},
    "fp8 storage": {"scheme": device_pb2.SCHEME_FP8_STORAGE},
}


class Emoji:
    """Paints the same subjects case after case."""

    def __init__(self, catalogue: Catalogue, engine: EngineHere) -> None:
        self._engine, self._call = engine, catalogue.message("emoji")
        self._reference = load_reference()
        self._dense: list[Any] = []

    def measure(self, case: str) -> dict[str, Any]:
        """Loads the model as the case says and returns figures, and likeness to the first case where that was made."""
        figures = self._engine.load(self._engine.plan("emoji", **CASES[case]))
        figures |= time_pictures(lambda steps: self._paint(SUBJECTS[0], steps), 4, 12)
        pictures = [self._paint(subject, 12).data for subject in SUBJECTS]
        found = sum(self._shows(data, subject) for data, subject in zip(pictures, SUBJECTS, strict=True))
        figures["recognised"] = f"{found} of {len(SUBJECTS)}"
        pixels = [pixels_of(data) for data in pictures]
        if not self._dense:
            self._dense = pixels
            return figures
        pairs = list(zip(self._dense, pixels, strict=True))
        figures["psnr_db"] = round(statistics.median(psnr_db(*pair) for pair in pairs), 2)
        figures["ssim"] = round(statistics.median(ssim(*pair) for pair in pairs), 4)
        return figures

    def _paint(self, subject: str, steps: int) -> Any:
        defaults = self._call.defaults
        return self._engine.paint(
            model="emoji",
            prompt=f"a {subject}, 3d style, blue background",
            negative_prompt=defaults.negative_prompt,
            width=defaults.width,
            height=defaults.height,
            guidance=defaults.guidance,
            steps=steps,
            seed=1,
        )

    def _shows(self, data: bytes, subject: str) -> bool:
        """Whether the subject is among the five nearest training pictures."""
        nearest = self._reference.nearest(Image.open(io.BytesIO(data)).convert("RGB"))
        return any(subject in match.names for match in nearest)
