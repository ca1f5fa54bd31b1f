"""Fifth stage: weights go where the plan's offload tier wants them, and decoding is tiled or sliced as planned.

Invariant: a tier that this file does not know was refused before; nothing spills in silence.
"""

from __future__ import annotations

from services.worker.engine.assembly.stage import Assembly, Stage
from services.worker.engine.reporting import LoadReporter


class PlacementStage(Stage):
    """Moves the resident pipeline to the device."""

    name = "placement"

    def apply(self, assembly: Assembly, report: LoadReporter) -> None:
        report.check()
        assembly.pipeline.to(assembly.device)
        assembly.engage("offload", resolved="none", engaged="none")
        vae = getattr(assembly.pipeline, "vae", None)
        for knob, wanted in (("vae_tiling", assembly.plan.vae_tiling), ("vae_slicing", assembly.plan.vae_slicing)):
            switch = getattr(vae, f"enable_{knob.removeprefix('vae_')}", None)
            if wanted and switch is not None:
                switch()
            reason = "this VAE has no such mode" if wanted and switch is None else ""
            assembly.engage(knob, resolved=_word(wanted), engaged=_word(wanted and switch is not None), reason=reason)

    def undo(self, assembly: Assembly) -> None:
        """Nothing of its own: undoing the stages before drops the weights, wherever they are."""


def _word(is_on: bool) -> str:
    return "on" if is_on else "off"
