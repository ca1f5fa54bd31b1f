"""Fallbacks: for each thing that can fail, the next candidate that the same failure can't reach.

Knows nothing of plans as messages. Invariant: every fallback fits its own budget; along the out-of-memory trigger each
needs strictly less than the one before.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias

from darkroom.v1 import plan_pb2
from services.planner.candidates import Candidate
from services.planner.memory import Supply, fits
from services.planner.sources import CONVERTED

if TYPE_CHECKING:
    Trigger: TypeAlias = plan_pb2.FallbackTrigger.ValueType
# After this many smaller plans have run out of memory, the figures are wrong and nothing is gained by another.
MOST_SMALLER = 3


def fallbacks_of(chosen: Candidate, rest: Sequence[Candidate], supply: Supply) -> list[tuple[Trigger, Candidate]]:
    """Returns what follows each failure of `chosen`, in order.

    Args:
        chosen: the candidate that is planned.
        rest: the candidates behind it, fastest first.
        supply: what they must fit.
    """
    found: list[tuple[Trigger, Candidate]] = []
    fitting = [candidate for candidate in rest if fits(supply, candidate.demand, candidate.fill)]
    if chosen.source.is_prequantised:
        other = next((item for item in fitting if not item.source.is_prequantised), None)
        _add(found, plan_pb2.FALLBACK_TRIGGER_SOURCE_FAILED, other)
    if chosen.scheme in CONVERTED:
        other = next((item for item in fitting if item.scheme not in CONVERTED), None)
        _add(found, plan_pb2.FALLBACK_TRIGGER_KERNEL_FAILED, other)
    least = chosen.demand.required
    for candidate in fitting:
        if candidate.demand.required < least and _count(found) < MOST_SMALLER:
            _add(found, plan_pb2.FALLBACK_TRIGGER_OUT_OF_MEMORY, candidate)
            least = candidate.demand.required
    return found


def _add(found: list[tuple[Trigger, Candidate]], trigger: Trigger, candidate: Candidate | None) -> None:
    if candidate is not None:
        found.append((trigger, candidate))


def _count(found: list[tuple[Trigger, Candidate]]) -> int:
    return sum(trigger == plan_pb2.FALLBACK_TRIGGER_OUT_OF_MEMORY for trigger, _ in found)
