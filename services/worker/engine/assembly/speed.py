"""Last stage: speed mode, attention kernel, step cache.

Today it does nothing but say so: every knob answers what really runs. Invariant: status never overstates.
"""

from __future__ import annotations

from darkroom.v1 import plan_pb2
from services.worker.engine.assembly.stage import Assembly, Stage
from services.worker.engine.reporting import LoadReporter

NOT_YET = "this worker does not do it yet"


class SpeedStage(Stage):
    """Leaves the pipeline as the bit-identical reference."""

    name = "speed"

    def apply(self, assembly: Assembly, report: LoadReporter) -> None:
        plan = assembly.plan
        wanted = _word(plan_pb2.SpeedMode.Name(plan.speed_mode), "SPEED_MODE_") if plan.speed_mode else "off"
        assembly.engage("speed", resolved=wanted, engaged="off", reason="" if wanted == "off" else NOT_YET)
        kernel = _word(plan_pb2.AttentionBackend.Name(plan.attention), "ATTENTION_BACKEND_") if plan.attention else ""
        kernel = kernel or "native"
        reason = "" if kernel == "native" else NOT_YET
        assembly.engage("attention", resolved=kernel, engaged="native", reason=reason)
        cache = plan.step_cache.kind
        cached = _word(plan_pb2.StepCacheKind.Name(cache), "STEP_CACHE_KIND_") if cache else "off"
        assembly.engage("step_cache", resolved=cached, engaged="off", reason="" if cached == "off" else NOT_YET)

    def undo(self, assembly: Assembly) -> None:
        """Nothing was changed."""


def _word(name: str, prefix: str) -> str:
    return name.removeprefix(prefix).lower()
