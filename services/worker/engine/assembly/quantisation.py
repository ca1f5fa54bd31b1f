"""Third stage: components are quantised as the plan says, before they are placed.

Knows nothing of kernels: `darkroom.modeling.quantise` does the work. Invariant: what is told as engaged is what layers
hold; a component that was quantised halfway is dropped with the assembly, never used.
"""

from __future__ import annotations

from darkroom.modeling.float8_files import keep_float8
from darkroom.modeling.quantise import Quantised, accumulates_fast, quantise
from darkroom.modeling.row_scaled import FP8
from darkroom.rpc.logs import log
from darkroom.v1 import device_pb2, generation_pb2, plan_pb2
from services.worker.component_files import SINGLE_FILE, holds_float8
from services.worker.engine.assembly.artifacts import told
from services.worker.engine.assembly.stage import DTYPES, Assembly, Stage
from services.worker.engine.reporting import LoadReporter

NONE, GGUF, STORAGE = device_pb2.SCHEME_NONE, device_pb2.SCHEME_GGUF, device_pb2.SCHEME_FP8_STORAGE


class QuantisationStage(Stage):
    """Quantises every component that the plan keeps in a scheme."""

    name = "quantisation"

    def apply(self, assembly: Assembly, report: LoadReporter) -> None:
        engaged, reasons = [], []
        for part in assembly.plan.components:
            report.check()
            scheme = scheme_name(part.scheme)
            if part.name in assembly.artifacts:
                # Its layers are in the scheme already, and counted against the filter when it was read.
                reasons.append(f"{part.name}: {told(assembly.artifacts[part.name])}")
            elif part.scheme not in (NONE, GGUF):
                report.progress(_progress(part.name))
                done = _quantise(assembly, part, report)
                reasons.append(f"{part.name}: {_told(done)}")
                scheme = scheme if done.num_layers else "none"
                log.info("quantised", component=part.name, scheme=scheme, **vars(done))
            elif part.source.kind == SINGLE_FILE and holds_float8(assembly.sources[part.name]):
                num_layers = keep_float8(assembly.parts[part.name], DTYPES[part.compute_type], report.check)
                scheme = scheme_name(STORAGE) if num_layers else scheme
                reasons.append(f"{part.name}: {num_layers} layers stay in float8, as the file has them")
            engaged.append(f"{part.name}={scheme}")
        resolved = ", ".join(f"{part.name}={scheme_name(part.scheme)}" for part in assembly.plan.components)
        assembly.engage("scheme", resolved=resolved, engaged=", ".join(engaged), reason="; ".join(reasons))
        _engage_accumulation(assembly)

    def undo(self, assembly: Assembly) -> None:
        """Quantised weights go with the components: there is no way back to dense ones."""


def _quantise(assembly: Assembly, part: plan_pb2.ComponentPlan, report: LoadReporter) -> Quantised:
    return quantise(
        assembly.parts[part.name],
        part.scheme,
        part.recipe,
        DTYPES[part.compute_type],
        assembly.device,
        report.check,
    )


def _engage_accumulation(assembly: Assembly) -> None:
    """Tells how float8 products are summed, as the weights have it, where there are any."""
    for part in assembly.plan.components:
        if part.scheme == FP8 and (is_fast := accumulates_fast(assembly.parts[part.name])) is not None:
            words = ["on" if is_on else "off" for is_on in (part.recipe.fast_accumulate, is_fast)]
            assembly.engage("fast_accumulate", resolved=words[0], engaged=words[1])
            return


def _told(done: Quantised) -> str:
    text = f"{done.num_layers} layers, {done.bytes_before} bytes became {done.bytes_after}"
    if done.num_padded:
        text += f", {done.num_padded} of them with padded rows"
    if done.num_unproven:
        text += f"; {done.num_unproven} stayed dense, where padding was not exact"
    return text


def scheme_name(scheme: int) -> str:
    """The scheme's word: "int8"."""
    return device_pb2.Scheme.Name(scheme).removeprefix("SCHEME_").lower()  # type: ignore[arg-type]


def _progress(name: str) -> generation_pb2.Progress:
    return generation_pb2.Progress(phase=generation_pb2.PHASE_ASSEMBLING, fraction=0.9, detail=f"quantising {name}")
