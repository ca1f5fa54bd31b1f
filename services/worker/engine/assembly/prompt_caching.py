"""Eighth stage: prompts that were encoded before are not encoded again, nor are their encoders moved for it.

Knows nothing of embeddings. Invariant: what is taken off again leaves the pipeline as it was.
"""

from __future__ import annotations

from darkroom.v1 import plan_pb2
from services.worker.engine.assembly.stage import Assembly, Stage
from services.worker.engine.prompt_cache import KNOB, PromptCache
from services.worker.engine.reporting import LoadReporter

METHOD = "encode_prompt"


class PromptCachingStage(Stage):
    """Puts a cache in the place of the pipeline's own encoding."""

    name = "prompt caching"

    def apply(self, assembly: Assembly, report: LoadReporter) -> None:
        report.check()
        most_bytes = assembly.settings.worker_prompt_cache_bytes
        encode = getattr(assembly.pipeline, METHOD, None)
        problem = "" if encode is not None else "the pipeline encodes prompts within its call"
        if not most_bytes or encode is None:
            assembly.engage(KNOB, resolved="on" if most_bytes else "off", engaged="off", reason=problem)
            return
        role = plan_pb2.COMPONENT_ROLE_TEXT_ENCODER
        encoders = [assembly.parts[part.name] for part in assembly.plan.components if part.role == role]
        assembly.prompt_cache = PromptCache(encode, encoders, most_bytes)
        vars(assembly.pipeline)[METHOD] = assembly.prompt_cache
        assembly.watchers.append(assembly.prompt_cache)
        assembly.engage(KNOB, resolved="on", engaged=f"up to {most_bytes} bytes")

    def undo(self, assembly: Assembly) -> None:
        if assembly.pipeline is not None:
            vars(assembly.pipeline).pop(METHOD, None)
        if assembly.prompt_cache is not None:
            assembly.prompt_cache.clear()
        assembly.prompt_cache = None
