"""The worker's state machine, whole.

    EMPTY → LOADING → READY ⇄ GENERATING      LOADING, READY, GENERATING → UNLOADING → EMPTY
    READY ⇄ LOADING while another model's weights are fetched and checked: what is loaded stays until they are right.
    And from each of them to EMPTY when the engine dies.
    Two states lie over these: FAILED while the device does not answer, DRAINING for good once the worker stops.

Knows nothing of engines or tokens. Invariant: no state is entered but by an arrow of the table.
"""

from __future__ import annotations

from darkroom.rpc.errors import InternalError
from darkroom.v1 import worker_pb2

EMPTY: int = worker_pb2.WORKER_STATE_EMPTY
LOADING: int = worker_pb2.WORKER_STATE_LOADING
READY: int = worker_pb2.WORKER_STATE_READY
GENERATING: int = worker_pb2.WORKER_STATE_GENERATING
UNLOADING: int = worker_pb2.WORKER_STATE_UNLOADING
FAILED: int = worker_pb2.WORKER_STATE_FAILED
DRAINING: int = worker_pb2.WORKER_STATE_DRAINING

# A dead engine leads to EMPTY from anywhere: its memory is gone.
ARROWS: dict[int, frozenset[int]] = {
    EMPTY: frozenset({LOADING, UNLOADING}),
    LOADING: frozenset({READY, UNLOADING, EMPTY}),
    READY: frozenset({GENERATING, LOADING, UNLOADING, EMPTY}),
    GENERATING: frozenset({READY, UNLOADING, EMPTY}),
    UNLOADING: frozenset({EMPTY}),
}


class Lifecycle:
    """The state of one worker."""

    def __init__(self) -> None:
        self._state: int = EMPTY
        self.is_draining = False
        self.has_failed = False

    @property
    def device_state(self) -> int:
        """What the device is doing, whatever lies over it."""
        return self._state

    @property
    def reported_state(self) -> int:
        """What status tells: FAILED hides DRAINING, which hides the rest."""
        if self.has_failed:
            return FAILED
        return DRAINING if self.is_draining else self._state

    def enter(self, state: int) -> None:
        """Goes to `state`; staying where it is is no move.

        Raises:
            InternalError: no arrow leads there.
        """
        if state == self._state:
            return
        if state not in ARROWS[self._state]:
            names = worker_pb2.WorkerState.Name
            raise InternalError(f"the worker can't go from {names(self._state)} to {names(state)}")  # type: ignore[arg-type]
        self._state = state

    def enter_if(self, current: int, state: int) -> None:
        """Goes to `state` only from `current`: the end of an activity that something may have overtaken."""
        if self._state == current:
            self.enter(state)

    def drain(self) -> None:
        """Starts draining, for good."""
        self.is_draining = True
