"""What the planner's arithmetic says of a model: bytes of each part at rest, and what each stage needs beside them.

Knows nothing of measuring. Invariant: figures come from the functions that plans are made with.
"""

from __future__ import annotations

import torch

from bench.device.models import Model
from darkroom.knowledge import Catalogue, Component
from darkroom.v1 import device_pb2, plan_pb2, planner_service_pb2
from darkroom.v1.device_pb2 import Scheme
from services.planner.placement import Activations, Weights
from services.planner.question import ask
from services.planner.sizes import Bytes, activations_of

DENSE = device_pb2.SCHEME_NONE


class Prediction:
    """The planner's figures for one model at one size on an H200."""

    def __init__(self, catalogue: Catalogue, model: Model) -> None:
        request = planner_service_pb2.PlanRequest(
            model=model.variant, device=catalogue.device("h200"), workload=model.workload
        )
        self._question = ask(request, catalogue)
        self._bytes = Bytes(self._question)
        self.activations: Activations = activations_of(self._question, slices=False)

    def rest_bytes(self, architecture: str, scheme: Scheme.ValueType = DENSE) -> int:
        """Returns the device bytes of a part's weights."""
        return self._bytes.of(self._part(architecture), scheme)

    def dtype(self, architecture: str) -> torch.dtype:
        """Returns what a part computes in."""
        is_wide = self._part(architecture).compute_type == plan_pb2.COMPUTE_TYPE_FLOAT32
        return torch.float32 if is_wide else torch.bfloat16

    def weights(self, scheme: Scheme.ValueType) -> Weights:
        """Returns the bytes of all parts, the denoiser in a scheme."""
        return self._bytes.weights(scheme, DENSE, visits_dense=False)

    def _part(self, architecture: str) -> Component:
        parts = self._question.variant.components.values()
        return next(part for part in parts if part.architecture == architecture)
