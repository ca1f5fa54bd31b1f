"""Last stage: global flags by speed mode, and compilation of repeated blocks, warmed up before the load ends.

Invariants: mode off changes nothing; every flag that another mode sets is put back as it was found; what was asked for
and does not run is told as off.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from darkroom.v1 import generation_pb2, plan_pb2
from services.worker.engine.assembly.attention import denoisers
from services.worker.engine.assembly.stage import Assembly, Stage
from services.worker.engine.generation import warm_up
from services.worker.engine.reporting import LoadReporter

OFF, MAX = plan_pb2.SPEED_MODE_OFF, plan_pb2.SPEED_MODE_MAX
# (how a global flag is read, how it is set, its value in mode max). What mode default sets is nothing.
FLAGS: tuple[tuple[Callable[[], Any], Callable[[Any], None], Any], ...] = (
    (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision, "high"),
    (lambda: torch.backends.cudnn.benchmark, lambda value: setattr(torch.backends.cudnn, "benchmark", value), True),
)


class SpeedStage(Stage):
    """Sets flags and compiles, as far as the plan says."""

    name = "speed"

    def apply(self, assembly: Assembly, report: LoadReporter) -> None:
        plan, mode = assembly.plan, assembly.plan.speed_mode or OFF
        report.check()
        if mode == MAX:
            _set_flags(assembly)
        if plan.HasField("compile") and mode != OFF:
            self._compile(assembly, report)
        else:
            assembly.engage("compile", resolved="off", engaged="off")
        name = plan_pb2.SpeedMode.Name(mode).removeprefix("SPEED_MODE_").lower()
        assembly.engage("speed", resolved=name, engaged=name)

    def undo(self, assembly: Assembly) -> None:
        if assembly.is_compiled:
            torch.compiler.reset()
            assembly.is_compiled = False

    def _compile(self, assembly: Assembly, report: LoadReporter) -> None:
        wanted, names = assembly.plan.compile, []
        for denoiser in denoisers(assembly):
            if not getattr(denoiser, "_repeated_blocks", None):
                reason = f"{type(denoiser).__name__} names no repeated blocks"
                assembly.engage("compile", resolved="repeated blocks", engaged="off", reason=reason)
                return
            names += denoiser._repeated_blocks
        assembly.is_compiled = True
        for denoiser in denoisers(assembly):
            denoiser.compile_repeated_blocks(fullgraph=wanted.fullgraph, dynamic=wanted.dynamic or None)
        progress = generation_pb2.Progress(phase=generation_pb2.PHASE_COMPILING, fraction=0.95, detail="warming up")
        report.progress(progress)
        warm_up(assembly)
        reason = "CUDA graphs are not used: nobody has proven them on this worker" if wanted.cuda_graphs else ""
        assembly.engage("compile", resolved=f"blocks {', '.join(names)}", engaged="repeated blocks", reason=reason)


def _set_flags(assembly: Assembly) -> None:
    for read, write, value in FLAGS:
        assembly.restores.append(functools.partial(write, read()))
        write(value)
