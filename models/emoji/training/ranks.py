"""One process a GPU: what the training stages need from torch.distributed.

Started with ``torchrun --nproc-per-node N -m models.emoji.training.STAGE`` every process trains on
its own batches and gradients are averaged; started plainly there is one rank and nothing is sent.

Does not know models. Invariant: after `FlatGradients.average` every rank holds the same gradients,
so weights that start equal stay equal.
"""

from __future__ import annotations

import os

import torch
import torch.distributed as dist
from torch import nn


def join() -> torch.device:
    """Join the process group if torchrun started us; return this rank's device.

    cuDNN attention is switched off before anything is compiled: its backward crashes with torch
    2.11.0+cu130 on an H200 at these shapes ("illegal memory access"). Delete when a newer torch
    trains without it.
    """
    torch.set_float32_matmul_precision("high")
    has_cuda = torch.cuda.is_available()
    device = torch.device("cpu")
    if has_cuda:
        torch.backends.cuda.enable_cudnn_sdp(False)
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
    if "RANK" in os.environ and not dist.is_initialized():
        dist.init_process_group("nccl" if has_cuda else "gloo")
    return device


def leave() -> None:
    """Leave the process group, if any."""
    if dist.is_initialized():
        dist.destroy_process_group()


def rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0


def num_ranks() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1


def barrier() -> None:
    """Wait for all ranks."""
    if dist.is_initialized():
        dist.barrier()


def agree(value: float, device: torch.device) -> float:
    """Rank 0's value, on every rank: clocks differ, decisions must not."""
    if not dist.is_initialized():
        return value
    box = torch.tensor([value], dtype=torch.float64, device=device)
    dist.broadcast(box, 0)
    return float(box.item())


def share_weights(module: nn.Module) -> None:
    """Copy rank 0's parameters and buffers to every rank."""
    if dist.is_initialized():
        for tensor in [*module.parameters(), *module.buffers()]:
            dist.broadcast(tensor.data, 0)


class FlatGradients:
    """All gradients of some parameters as views of one buffer: one all-reduce, one norm."""

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        total = sum(parameter.numel() for parameter in parameters)
        self.buffer = torch.zeros(total, device=parameters[0].device)
        offset = 0
        for parameter in parameters:
            window = self.buffer[offset : offset + parameter.numel()]
            parameter.grad = window.view_as(parameter)
            offset += parameter.numel()

    def zero(self) -> None:
        self.buffer.zero_()

    def average(self) -> None:
        """Mean over all ranks, in place."""
        if dist.is_initialized():
            dist.all_reduce(self.buffer)
            self.buffer.div_(num_ranks())

    def clip(self, max_norm: float) -> torch.Tensor:
        """Scale to at most `max_norm` (no host sync); return the norm before."""
        norm = self.buffer.norm()
        self.buffer.mul_((max_norm / (norm + 1e-6)).clamp(max=1.0))
        return norm
