"""What the planner's arithmetic says of a model: bytes of each part at rest, and what each stage needs beside them.

Knows nothing of measuring. Invariant: figures come from the functions that plans are made with.
"""

from __future__ import annotations

import torch

from bench.device.models import Model
from darkroom.knowledge import Catalogue, Component
from darkroom.v1 import device_pb2, plan_pb2, planner_service_pb2
from darkroom.v1.device_pb2 import Scheme
from services.planner.placement import Activations
from services.planner.question import ask
from services.planner.sizes import Bytes, activations_of

DENSE = device_pb2.SCHEME_NONE
Figures = dict[str, int | None]


class Prediction:
    """The planner's figures for one model at one size on an H200."""

    def __init__(self, catalogue: Catalogue, model: Model) -> None:
        request = planner_service_pb2.PlanRequest(
            model=model.variant, device=catalogue.device("h200"), workload=model.workload
        )
        self._question, self._model = ask(request, catalogue), model
        self._bytes = Bytes(self._question)
        self.activations: Activations = activations_of(self._question, slices=False)

    def rest_bytes(self, architecture: str, scheme: Scheme.ValueType = DENSE) -> int:
        """Returns the device bytes of a part's weights."""
        return self._bytes.of(self._part(architecture), scheme)

    def dtype(self, architecture: str) -> torch.dtype:
        """Returns what a part computes in."""
        is_wide = self._part(architecture).compute_type == plan_pb2.COMPUTE_TYPE_FLOAT32
        return torch.float32 if is_wide else torch.bfloat16

    def resident(self, scheme: Scheme.ValueType) -> Figures:
        """A denoiser that stays on the device."""
        return self._figures(self.rest_bytes(self._model.denoiser, scheme), self.activations.denoise)

    def streamed(self, scheme: Scheme.ValueType) -> Figures:
        """A denoiser whose blocks come from the host; nothing is told of what rests."""
        held = self._bytes.weights(scheme, DENSE, visits_dense=False).streamed_denoiser
        return {**self._figures(held, self.activations.denoise), "predicted_rest_bytes": None}

    def decoding(self, is_tiled: bool) -> Figures:
        """A VAE, whole or in tiles."""
        needs = self.activations.tiled_decode if is_tiled else self.activations.decode
        return self._figures(self.rest_bytes(self._model.vae), needs)

    def encoding(self) -> Figures:
        """The largest text encoder."""
        return self._figures(self.rest_bytes(self._model.encoder), self.activations.encode)

    def _figures(self, rest_bytes: int, needs: int) -> Figures:
        return {"predicted_rest_bytes": rest_bytes, "predicted_peak_bytes": rest_bytes + needs}

    def _part(self, architecture: str) -> Component:
        parts = self._question.variant.components.values()
        return next(part for part in parts if part.architecture == architecture)
