"""Last stage: global flags by speed mode, compilation, and replay as graphs, all warmed up before the load ends.

Invariants: mode off changes nothing; every flag that another mode sets is put back as it was found; what was asked for
and does not run is told as off.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from darkroom.v1 import device_pb2, generation_pb2, plan_pb2
from services.worker.engine.assembly.attention import denoisers
from services.worker.engine.assembly.compile_cache import lookups, use_cache
from services.worker.engine.assembly.compiling import (
    RecompileCounter,
    compile_blocks,
    compile_decoder,
    num_graphs,
    raise_limit,
    repeated_blocks,
)
from services.worker.engine.assembly.graphs import CudaRecorder, Recorder, ReplayCounter, Replayer
from services.worker.engine.assembly.stage import Assembly, Stage
from services.worker.engine.generation import warm_up
from services.worker.engine.reporting import LoadReporter

OFF, MAX = plan_pb2.SPEED_MODE_OFF, plan_pb2.SPEED_MODE_MAX
# Schemes that quantise activations as they come.
DYNAMIC = {device_pb2.SCHEME_INT8, device_pb2.SCHEME_FP8, device_pb2.SCHEME_MXFP8, device_pb2.SCHEME_NVFP4}
# (how a global flag is read, how it is set, its value in mode max). What mode default sets is nothing.
FLAGS: tuple[tuple[Callable[[], Any], Callable[[Any], None], Any], ...] = (
    (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision, "high"),
    (lambda: torch.backends.cudnn.benchmark, lambda value: setattr(torch.backends.cudnn, "benchmark", value), True),
)


def cuda_recorder(device: torch.device) -> Recorder | None:
    """Returns what records on this device; None where nothing does."""
    return CudaRecorder(device) if device.type == "cuda" else None


class SpeedStage(Stage):
    """Sets flags and compiles, as far as the plan says.

    Args:
        find_recorder: gives what records graphs on a device; tests give another one.
    """

    name = "speed"

    def __init__(self, find_recorder: Callable[[torch.device], Recorder | None] = cuda_recorder) -> None:
        self._find_recorder = find_recorder

    def apply(self, assembly: Assembly, report: LoadReporter) -> None:
        plan, mode = assembly.plan, assembly.plan.speed_mode or OFF
        report.check()
        if mode == MAX:
            _set_flags(assembly)
        if plan.HasField("compile") and mode != OFF:
            self._compile(assembly, report)
        else:
            assembly.engage("compile", resolved="off", engaged="off", reason=_price(plan))
        name = plan_pb2.SpeedMode.Name(mode).removeprefix("SPEED_MODE_").lower()
        assembly.engage("speed", resolved=name, engaged=name)

    def undo(self, assembly: Assembly) -> None:
        assembly.watchers.clear()
        if assembly.is_compiled:
            torch.compiler.reset()
            assembly.is_compiled = False

    def _compile(self, assembly: Assembly, report: LoadReporter) -> None:
        plan, made_before = assembly.plan, num_graphs()
        wanted = plan.compile
        # Blocks that a class does not name are those of its lists, unless its family is known to break graphs.
        names = {id(one): repeated_blocks(one, is_named=not wanted.fullgraph) for one in denoisers(assembly)}
        for denoiser in denoisers(assembly):
            if not names[id(denoiser)]:
                reason = "; ".join(filter(None, [f"{type(denoiser).__name__} names no repeated blocks", _price(plan)]))
                assembly.engage("compile", resolved="repeated blocks", engaged="off", reason=reason)
                return
        assembly.is_compiled = True
        assembly.restores.append(raise_limit())
        lookups_before = _use_cache(assembly)
        for denoiser in denoisers(assembly):
            # The hooks of a cache decide in Python, step by step.
            fullgraph = wanted.fullgraph and assembly.cache_kind == plan_pb2.STEP_CACHE_KIND_OFF
            compile_blocks(denoiser, names[id(denoiser)], fullgraph=fullgraph, dynamic=wanted.dynamic or None)
        decodes = _compile_decoder(assembly)
        replays = self._replay(assembly)
        progress = generation_pb2.Progress(phase=generation_pb2.PHASE_COMPILING, fraction=0.95, detail="warming up")
        report.progress(progress)
        # A call is recorded when its shapes come for the second time.
        warm_up(assembly, steps=2 if replays else 1, decodes=decodes)
        if replays:
            engaged = "off" if replays.problem else "on"
            assembly.engage("cuda_graphs", resolved="on", engaged=engaged, reason=replays.problem)
        counter = RecompileCounter(replays.forget if replays else lambda: None)
        assembly.watchers += [counter, *([replays] if replays else [])]
        blocks = ", ".join(sorted(frozenset().union(*names.values())))
        _engage_cache(assembly, lookups_before)
        reason = f"{num_graphs() - made_before} graphs were made"
        assembly.engage("compile", resolved=f"blocks {blocks}", engaged="repeated blocks", reason=reason)

    def _replay(self, assembly: Assembly) -> ReplayCounter | None:
        """Has the denoisers' forward replayed where the plan asks for it and nothing is against it."""
        if not assembly.plan.compile.cuda_graphs:
            return None
        recorder = self._find_recorder(assembly.device)
        problem = _replay_obstacle(assembly) or ("" if recorder else "this device records no graphs")
        if problem or recorder is None:
            assembly.engage("cuda_graphs", resolved="on", engaged="off", reason=problem)
            return None
        replayers = []
        for denoiser in denoisers(assembly):
            replayers.append(Replayer(denoiser.forward, recorder, assembly.device))
            denoiser.forward = replayers[-1]
            assembly.restores.append(functools.partial(denoiser.__dict__.pop, "forward", None))
        return ReplayCounter(replayers)


def _price(plan: plan_pb2.Plan) -> str:
    """What uncompiled steps cost in the denoiser's scheme; empty where nothing beyond the dense ones."""
    schemes = {part.scheme for part in plan.components if part.role == plan_pb2.COMPONENT_ROLE_DENOISER}
    return "uncompiled dynamic quantisation is 20 to 60 times slower than dense" if schemes & DYNAMIC else ""


def _use_cache(assembly: Assembly) -> tuple[int, int] | None:
    """Has compiled code kept on disk. Returns what was looked up before; None where nothing is kept."""
    most_bytes = assembly.settings.worker_compile_cache_bytes
    if not most_bytes:
        assembly.engage("compile_cache", resolved="off", engaged="off")
        return None
    problem, restore = use_cache(assembly, most_bytes)
    if problem:
        assembly.engage("compile_cache", resolved="on", engaged="off", reason=problem)
        return None
    assembly.restores.append(restore)
    return lookups()


def _engage_cache(assembly: Assembly, before: tuple[int, int] | None) -> None:
    if before is not None:
        found, made = (after - earlier for after, earlier in zip(lookups(), before, strict=True))
        engaged = f"{found} of {found + made} graphs found"
        assembly.engage("compile_cache", resolved="on", engaged=engaged)


def _replay_obstacle(assembly: Assembly) -> str:
    """Why no forward may be replayed; empty where it may."""
    if assembly.plan.offload != plan_pb2.OFFLOAD_TIER_NONE:
        return "weights come and go in this offload tier"
    if assembly.cache_kind != plan_pb2.STEP_CACHE_KIND_OFF:
        return "a step cache decides anew at every step"
    if assembly.plan.adapters.adapters:
        return "the weights of adapters move"
    return ""


def _compile_decoder(assembly: Assembly) -> bool:
    """Compiles the decoder where the plan asks for it. Returns whether it is."""
    if not assembly.plan.compile.vae:
        return False
    problem = "tiles have shapes of many kinds" if assembly.plan.vae_tiling else ""
    if not problem:
        problem, undo = compile_decoder(getattr(assembly.pipeline, "vae", None))
        if undo is not None:
            assembly.restores.append(undo)
    engaged = "off" if problem else "channels last"
    assembly.engage("vae_compile", resolved="channels last", engaged=engaged, reason=problem)
    return not problem


def _set_flags(assembly: Assembly) -> None:
    for read, write, value in FLAGS:
        assembly.restores.append(functools.partial(write, read()))
        write(value)
