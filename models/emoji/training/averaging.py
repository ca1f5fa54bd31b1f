"""An exponential moving average of weights (EMA).

Does not know what is trained. Invariant: the average lives in float32 beside the model and is
updated without host synchronisation.
"""

from __future__ import annotations

import torch
from torch import nn


class MovingAverage:
    """Averaged copies of all parameters of a module, by name."""

    def __init__(self, module: nn.Module, max_decay: float) -> None:
        self.max_decay = max_decay
        self._live = dict(module.named_parameters())
        self.weights = {name: p.detach().float().clone() for name, p in self._live.items()}

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Blend in the live weights; the decay grows as (1 + step) / (10 + step) up to the max."""
        decay = min(self.max_decay, (1 + step) / (10 + step))
        torch._foreach_lerp_(list(self.weights.values()), [p.detach() for p in self._live.values()], 1 - decay)

    def load(self, weights: dict[str, torch.Tensor]) -> None:
        """Replace the averages (all names must be there)."""
        for name, average in self.weights.items():
            average.copy_(weights[name])
