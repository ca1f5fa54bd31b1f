"""Seventh stage: reuse of denoising steps, on every denoiser or on none.

By diffusers' hooks. Knows nothing of how far reuse may go: the plan has the figures. Invariant: a request never sees
what an earlier one left, ended or cancelled: state is dropped before each.
"""

from __future__ import annotations

from typing import Any

from diffusers.hooks.first_block_cache import FirstBlockCacheConfig
from diffusers.hooks.mag_cache import FLUX_MAG_RATIOS, MagCacheConfig

from darkroom.v1 import plan_pb2
from services.worker.engine.assembly.attention import denoisers
from services.worker.engine.assembly.stage import Assembly, Stage
from services.worker.engine.reporting import LoadReporter

OFF, FIRST_BLOCK = plan_pb2.STEP_CACHE_KIND_OFF, plan_pb2.STEP_CACHE_KIND_FIRST_BLOCK
MAGNITUDE = plan_pb2.STEP_CACHE_KIND_MAGNITUDE
# Curves of magnitudes by denoiser class. diffusers 0.42 publishes one, of FLUX.1, over 28 steps.
CURVES: dict[str, Any] = {"FluxTransformer2DModel": FLUX_MAG_RATIOS}
# Single blocks return a tensor and double blocks a pair, which first-block caching subtracts (diffusers 0.42.1).
BREAK_FIRST_BLOCK = frozenset({"Flux2Transformer2DModel"})


class CachingStage(Stage):
    """Turns step caching on."""

    name = "caching"

    def apply(self, assembly: Assembly, report: LoadReporter) -> None:
        report.check()
        kind = assembly.plan.step_cache.kind or OFF
        name = plan_pb2.StepCacheKind.Name(kind).removeprefix("STEP_CACHE_KIND_").lower()
        problem = _obstacle(assembly, kind) if kind != OFF else ""
        if kind == FIRST_BLOCK and not problem:
            problem = _enable(assembly, FirstBlockCacheConfig(threshold=assembly.plan.step_cache.threshold))
        assembly.cache_kind = OFF if problem else kind
        assembly.engage("step_cache", resolved=name, engaged="off" if problem else name, reason=problem)

    def undo(self, assembly: Assembly) -> None:
        assembly.cache_kind = OFF
        _disable(assembly)


def renew_cache(assembly: Assembly, num_steps: int) -> None:
    """Drops what an earlier request left, before the next one begins; a curve is fitted to the number of steps."""
    if assembly.cache_kind == MAGNITUDE:
        _disable(assembly)
        settings = assembly.plan.step_cache
        for denoiser in denoisers(assembly):
            denoiser.enable_cache(
                MagCacheConfig(
                    threshold=settings.threshold,
                    max_skip_steps=settings.max_skips,
                    retention_ratio=settings.retention,
                    num_inference_steps=num_steps,
                    mag_ratios=CURVES[type(denoiser).__name__],
                )
            )
    elif assembly.cache_kind == FIRST_BLOCK:
        for denoiser in denoisers(assembly):
            denoiser._reset_stateful_cache()


def _obstacle(assembly: Assembly, kind: int) -> str:
    """Why this kind can't be used on every denoiser; empty where it can."""
    for denoiser in denoisers(assembly):
        name = type(denoiser).__name__
        if not hasattr(denoiser, "enable_cache"):
            return f"{name} takes no step cache"
        if kind == FIRST_BLOCK and name in BREAK_FIRST_BLOCK:
            return f"first-block caching breaks {name}"
        if kind == MAGNITUDE and name not in CURVES:
            return f"nobody has published the curve of magnitudes of {name}"
    return ""


def _enable(assembly: Assembly, config: Any) -> str:
    """Enables a cache on all denoisers, or on none and says why."""
    try:
        for denoiser in denoisers(assembly):
            denoiser.enable_cache(config)
    except (ValueError, TypeError, AttributeError) as failure:
        _disable(assembly)
        return f"the cache can't be enabled ({type(failure).__name__}: {str(failure)[:120]})"
    return ""


def _disable(assembly: Assembly) -> None:
    for name in [part.name for part in assembly.plan.components if part.role == plan_pb2.COMPONENT_ROLE_DENOISER]:
        denoiser: Any = assembly.parts.get(name)
        if getattr(denoiser, "is_cache_enabled", False):
            denoiser.disable_cache()
