"""Ninth stage: what depends on the tokens' positions alone is computed once, where every evaluation did it anew.

A rotary embedding is many small operations in float64: 0.27 ms an evaluation and 6.5 ms a picture of the emoji model on
2 cores (bench/LAB.md). A device of its own computes it beside the host, and comparing positions there would have the
host wait: so this is for pipelines on the processor. Knows nothing of denoisers but where they keep the module.
Invariants: what is found is what computing gives, bit for bit; what is taken off again leaves the module as it was.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from darkroom.v1 import plan_pb2
from services.worker.engine.assembly.attention import denoisers
from services.worker.engine.assembly.stage import Assembly, Stage
from services.worker.engine.reporting import LoadReporter

KNOB = "positions"
# Modules that are functions of their one argument, read in diffusers 0.42.1: of FLUX.1 and Chroma, and of FLUX.2.
KNOWN = frozenset({"FluxPosEmbed", "Flux2PosEmbed"})
# Sizes, or lengths of prompts, that are kept: a guided call may use two by turns.
MOST_KEPT = 2


class PositionMemory:
    """Stands for the forward of a module whose answer is decided by its one argument.

    Args:
        compute: the module's own.
    """

    def __init__(self, compute: Callable[[torch.Tensor], Any]) -> None:
        self._compute = compute
        self._kept: list[tuple[torch.Tensor, Any]] = []

    @property
    def kept_shapes(self) -> list[torch.Size]:
        """Of the positions that are known, newest first."""
        return [kept.shape for kept, _ in self._kept]

    def __call__(self, ids: torch.Tensor) -> Any:
        """Returns what computing gives; nobody may write into it.

        Args:
            ids: positions, a row a token.
        """
        for kept, value in self._kept:
            if kept.dtype == ids.dtype and torch.equal(kept, ids):
                return value
        value = self._compute(ids)
        self._kept = [(ids.clone(), value), *self._kept[: MOST_KEPT - 1]]
        return value


class PositionsStage(Stage):
    """Puts a memory in the place of each denoiser's own computing."""

    name = "positions"

    def apply(self, assembly: Assembly, report: LoadReporter) -> None:
        report.check()
        if assembly.device.type != "cpu" or assembly.plan.offload != plan_pb2.OFFLOAD_TIER_NONE:
            return
        modules = [module for one in denoisers(assembly) if (module := getattr(one, "pos_embed", None)) is not None]
        known = [module for module in modules if type(module).__name__ in KNOWN]
        for module in known:
            module.forward = PositionMemory(module.forward)
            assembly.restores.append(functools.partial(vars(module).pop, "forward", None))
        if known:
            assembly.engage(KNOB, resolved="kept", engaged="kept")

    def undo(self, assembly: Assembly) -> None:
        """The line puts the modules' own computing back."""
