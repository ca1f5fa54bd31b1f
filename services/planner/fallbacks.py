"""Fallbacks: for each thing that can fail, the next candidate that the same failure can't reach.

Knows nothing of plans as messages. Invariant: every fallback fits its own budget; along the out-of-memory trigger each
needs strictly less than the one before.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from darkroom.v1 import device_pb2, plan_pb2
from services.planner.candidates import Candidate, is_fitting
from services.planner.memory import Supply
from services.planner.sources import CONVERTED

if TYPE_CHECKING:
    Trigger: TypeAlias = plan_pb2.FallbackTrigger.ValueType
SOURCE_FAILED = plan_pb2.FALLBACK_TRIGGER_SOURCE_FAILED
# After this many smaller plans have run out of memory, the figures are wrong and nothing is gained by another.
MOST_SMALLER = 2
# A fallback that frees less than a tenth is no answer to running out of memory.
WORTHWHILE = 0.9


class Next(NamedTuple):
    """What follows a failure. What follows a failed artifact reads none."""

    trigger: Trigger
    candidate: Candidate
    # Nothing is compiled.
    is_eager: bool = False


def fallbacks_of(
    chosen: Candidate, rest: Iterable[Candidate], supply: Supply, reads_artifact: bool, is_compiled: bool
) -> list[Next]:
    """Returns what follows each failure of `chosen`, in order.

    Args:
        chosen: the candidate that is planned.
        rest: the candidates behind it, fastest first.
        supply: what they must fit.
        reads_artifact: the plan reads some component from an artifact.
        is_compiled: the plan compiles, which may fail as a kernel may.
    """
    found: list[Next] = []
    wants_source, wants_kernel = chosen.source.is_prequantised, chosen.scheme in CONVERTED
    if reads_artifact and not wants_source:
        # Text encoders alone: the same plan, with them read dense and cast on the host.
        found.append(Next(SOURCE_FAILED, chosen))
    plain = None if wants_kernel else chosen
    least, num_smaller = chosen.required, 0
    for candidate in rest:
        if not (wants_source or wants_kernel or num_smaller < MOST_SMALLER):
            break
        if not is_fitting(candidate, supply):
            continue
        if wants_source and not candidate.source.is_prequantised:
            found.append(Next(SOURCE_FAILED, candidate))
            wants_source = False
        if wants_kernel and candidate.scheme not in CONVERTED:
            found.append(Next(plan_pb2.FALLBACK_TRIGGER_KERNEL_FAILED, candidate))
            wants_kernel, plain = False, candidate
        if candidate.required < least * WORTHWHILE and num_smaller < MOST_SMALLER:
            found.append(Next(plan_pb2.FALLBACK_TRIGGER_OUT_OF_MEMORY, candidate))
            least, num_smaller = candidate.required, num_smaller + 1
    # Storage casts are never compiled: there is nothing to leave out.
    if is_compiled and plain is not None and plain.scheme != device_pb2.SCHEME_FP8_STORAGE:
        found.append(Next(plan_pb2.FALLBACK_TRIGGER_KERNEL_FAILED, plain, is_eager=True))
    return found
