"""Sixth stage: which kernel computes attention.

A kernel is set only after it has computed something here, and before compiling. Invariants: what can't run falls back
to PyTorch's own and says why; the choice, which diffusers also keeps globally, is taken back.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from diffusers.models.attention_dispatch import (
    AttentionBackendName,
    _AttentionBackendRegistry,
    _check_attention_backend_requirements,
    dispatch_attention_fn,
)

from darkroom.v1 import plan_pb2
from services.worker.engine.assembly.stage import DTYPES, Assembly, Stage
from services.worker.engine.reporting import LoadReporter

# diffusers' names. Kernels that it would download by themselves are none of them: nothing is fetched unasked.
BACKENDS: dict[int, str] = {
    plan_pb2.ATTENTION_BACKEND_CUDNN: "_native_cudnn",
    plan_pb2.ATTENTION_BACKEND_FLASH: "flash",
    plan_pb2.ATTENTION_BACKEND_FLASH3: "_flash_3",
    plan_pb2.ATTENTION_BACKEND_SAGE: "sage",
    plan_pb2.ATTENTION_BACKEND_XFORMERS: "xformers",
    plan_pb2.ATTENTION_BACKEND_AITER: "aiter",
}
# Batch, tokens, heads, features of a trial: what kernels for common models all take.
TRIAL_SHAPE = (1, 128, 4, 64)
# Largest difference to PyTorch's own, relative to its norm: int8 scores were the coarsest.
MOST_ERROR = 0.1


class AttentionStage(Stage):
    """Chooses the kernel on every denoiser."""

    name = "attention"

    def apply(self, assembly: Assembly, report: LoadReporter) -> None:
        report.check()
        wanted = assembly.plan.attention or plan_pb2.ATTENTION_BACKEND_NATIVE
        name = plan_pb2.AttentionBackend.Name(wanted).removeprefix("ATTENTION_BACKEND_").lower()
        if wanted == plan_pb2.ATTENTION_BACKEND_NATIVE:
            assembly.engage("attention", resolved=name, engaged="native")
            return
        problem = trial_problem(wanted, assembly.device, DTYPES[assembly.plan.compute_type])
        if not problem:
            before, _ = _AttentionBackendRegistry.get_active_backend()  # type: ignore[no-untyped-call]
            assembly.restores.append(lambda: _AttentionBackendRegistry.set_active_backend(before))
            for denoiser in denoisers(assembly):
                denoiser.set_attention_backend(BACKENDS[wanted])
        assembly.engage("attention", resolved=name, engaged="native" if problem else name, reason=problem)

    def undo(self, assembly: Assembly) -> None:
        """The line restores what is global; processors go with their module."""


def trial_problem(wanted: int, device: torch.device, compute_type: torch.dtype) -> str:
    """Says why a kernel can't run here, having tried; empty where it can."""
    backend = BACKENDS.get(wanted)
    if backend is None or backend not in {item.value for item in AttentionBackendName}:
        return "the installed diffusers has no such kernel without downloading one"
    generator = torch.Generator("cpu").manual_seed(0)
    query, key, value = (torch.randn(TRIAL_SHAPE, generator=generator).to(device, compute_type) for _ in range(3))
    try:
        _check_attention_backend_requirements(AttentionBackendName(backend))  # type: ignore[no-untyped-call]
        with torch.inference_mode():
            expected = dispatch_attention_fn(query, key, value, backend=AttentionBackendName("native"))
            computed = dispatch_attention_fn(query, key, value, backend=AttentionBackendName(backend))
    except Exception as failure:  # whatever a kernel raises is the answer that this trial is after
        return f"the kernel can't run here ({type(failure).__name__}: {str(failure).strip()[:120]})"
    error = float((computed.float() - expected.float()).norm() / expected.float().norm())
    return "" if error < MOST_ERROR else f"the kernel's result is {error:.0%} away from PyTorch's own"


def denoisers(assembly: Assembly) -> Iterator[Any]:
    """Yields the denoisers."""
    for part in assembly.plan.components:
        if part.role == plan_pb2.COMPONENT_ROLE_DENOISER:
            yield assembly.parts[part.name]
