"""Muon: momentum whose matrix updates are orthogonalised, all matrices of one shape at once.

Source: K. Jordan et al. 2024 (https://kellerjordan.github.io/posts/muon), Newton-Schulz
coefficients from there; update scale 0.2 * sqrt(max(rows, columns)) from Moonlight (Liu et al.
2025, arXiv 2502.16982), so that learning rates of AdamW carry over. torch.optim.Muon does the same matrix
by matrix; at this model's 100 small matrices that costs thousands of kernel launches a step.

Does not know the model. Invariant: only parameters that are matrices (or convolution kernels, seen
as matrices) are given to it.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn

NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
NUM_ITERATIONS = 5


def orthogonalize(update_NRC: torch.Tensor) -> torch.Tensor:
    """Nearest semi-orthogonal matrices, roughly: singular values end between 0.7 and 1.2.

    Args:
        update_NRC: float (N, rows, columns), a stack of matrices.
    """
    a, b, c = NEWTON_SCHULZ
    tall = update_NRC.size(1) > update_NRC.size(2)
    x = update_NRC.mT if tall else update_NRC
    x = x.bfloat16() if x.is_cuda else x
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(NUM_ITERATIONS):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return (x.mT if tall else x).to(update_NRC.dtype)


class Muon(torch.optim.Optimizer):
    """Nesterov momentum, orthogonalised, with decoupled weight decay."""

    def __init__(
        self, parameters: Iterable[nn.Parameter], lr: float, momentum: float = 0.95,
        weight_decay: float = 0.0,
    ) -> None:  # fmt: skip
        super().__init__(list(parameters), {"lr": lr})
        self.momentum = momentum
        self.weight_decay = weight_decay
        self._stacks: dict[tuple[int, int], list[nn.Parameter]] = {}
        for group in self.param_groups:
            for parameter in group["params"]:
                shape = (parameter.size(0), parameter[0].numel())
                self._stacks.setdefault(shape, []).append(parameter)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        lr = self.param_groups[0]["lr"]
        for (rows, columns), parameters in self._stacks.items():
            gradient = torch.stack([p.grad.reshape(rows, columns) for p in parameters])
            state = self.state[parameters[0]]
            if "momentum" not in state:
                state["momentum"] = torch.zeros_like(gradient)
            state["momentum"].lerp_(gradient, 1 - self.momentum)
            update = orthogonalize(gradient.lerp_(state["momentum"], self.momentum))
            update.mul_(-lr * 0.2 * max(rows, columns) ** 0.5)
            torch._foreach_mul_(parameters, 1 - lr * self.weight_decay)
            pieces = [piece.view_as(p) for piece, p in zip(update, parameters, strict=True)]
            torch._foreach_add_(parameters, pieces)
