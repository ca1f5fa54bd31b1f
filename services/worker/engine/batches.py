"""A run's items as the engine's calls take them: together as far as may be, halved when memory runs out.

Knows nothing of pipelines or sockets. Invariants: every item ends once; what one item spoils fails no other: after any
other failure of a call that made several, each is made alone. An item that brings pictures is alone in its call, for
pipelines take one set of pictures for all that a call makes.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from darkroom.rpc.errors import DarkroomError, OutOfMemoryError, error_to_message
from darkroom.rpc.logs import log
from darkroom.v1 import generation_pb2, worker_pb2
from services.worker.engine.reporting import ItemReporter

if TYPE_CHECKING:
    from services.worker.engine.loop import Engine

BRINGS_PICTURES = "a request that brings pictures is made alone"
Part = tuple[worker_pb2.RunItem, ItemReporter]


@dataclass(frozen=True)
class Batch:
    """What one call makes."""

    parts: tuple[Part, ...]
    # Why it is smaller than what was asked for.
    reason: str


def make_pictures(
    engine: Engine, items: Sequence[worker_pb2.RunItem], reporter_of: Callable[[str], ItemReporter]
) -> None:
    """Has the engine make every item's picture; each item's reporter is told how it ended."""
    parts = tuple((item, reporter_of(item.job_id)) for item in items)
    most, why = engine.most_at_once()
    waiting = deque(_first_calls(parts, most, why))
    while waiting:
        batch = waiting.popleft()
        live = [part for part in batch.parts if not part[1].heed_cancel()]
        if not live:
            continue
        if len(parts) > 1:
            _tell_batch(live, len(parts), min(most, len(parts)), batch.reason)
        failure = _make(engine, live)
        if failure is not None:
            waiting.extendleft(reversed(_after(failure, live)))


def _first_calls(parts: tuple[Part, ...], most: int, why: str) -> list[Batch]:
    """Returns the calls that make all parts, in order, if none fails."""
    calls = []
    for brings, run in itertools.groupby(parts, key=lambda part: bool(part[0].request.images)):
        group = tuple(run)
        size, reason = (1, BRINGS_PICTURES) if brings else (most, why)
        calls += _split(group, size, reason if len(parts) > size else "")
    return calls


def _make(engine: Engine, live: Sequence[Part]) -> DarkroomError | None:
    """Makes one call; returns what it failed with, rid of the frames that would keep its tensors alive."""
    try:
        engine.generate([item for item, _ in live], [report for _, report in live])
    except DarkroomError as failure:
        return failure.with_traceback(None)
    except Exception as failure:  # the job boundary: one call's failure leaves the others alone
        return engine.explain(failure)
    return None


def _after(failure: DarkroomError, live: Sequence[Part]) -> list[Batch]:
    """Returns the smaller calls that make what a failed one left, first ones first; none where it was one picture."""
    left = tuple(part for part in live if not part[1].is_over)
    if len(live) == 1:
        for _, report in left:
            report.fail(error_to_message(failure))
        return []
    log.warning("batch_failed", pictures=len(live), left=len(left), reason=failure.reason, detail=failure.message)
    if isinstance(failure, OutOfMemoryError):
        return _split(left, (len(left) + 1) // 2, f"the device ran out of memory with {len(live)} at once")
    return _split(left, 1, f"{len(live)} at once failed with {failure.reason}: each is made alone")


def _split(parts: tuple[Part, ...], size: int, reason: str) -> list[Batch]:
    return [Batch(parts[place : place + size], reason) for place in range(0, len(parts), size)]


def _tell_batch(live: Sequence[Part], requested: int, resolved: int, reason: str) -> None:
    for _, report in live:
        report.batch = generation_pb2.Engagement(
            knob="batch", requested=str(requested), resolved=str(resolved), engaged=str(len(live)), reason=reason
        )
        report.begin()
