"""Fourth stage: weights go where the plan's offload tier wants them, and decoding is tiled or sliced as planned.

Invariant: a tier that this file does not know was refused before; nothing spills in silence.
"""

from __future__ import annotations

import torch

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


def storage_bytes(modules: list[torch.nn.Module], device: torch.device) -> int:
    """Bytes of the distinct storages that the modules' parameters and buffers fill on a device of this type."""
    sizes: dict[int, int] = {}
    for module in modules:
        for tensor in (*module.parameters(), *module.buffers()):
            if tensor.device.type == device.type:
                storage = tensor.untyped_storage()
                sizes[storage.data_ptr()] = max(storage.nbytes(), sizes.get(storage.data_ptr(), 0))
    return sum(sizes.values())


def _word(is_on: bool) -> str:
    return "on" if is_on else "off"
