"""The worker's state machine."""

from __future__ import annotations

import itertools

import pytest

from darkroom.rpc.errors import InternalError
from services.worker.lifecycle import (
    ARROWS,
    DRAINING,
    EMPTY,
    FAILED,
    GENERATING,
    LOADING,
    READY,
    UNLOADING,
    Lifecycle,
)


def reach(*states: int) -> Lifecycle:
    lifecycle = Lifecycle()
    for state in states:
        lifecycle.enter(state)
    return lifecycle


def test_a_model_is_loaded_used_and_given_back() -> None:
    assert reach(LOADING, READY, GENERATING, READY, UNLOADING, EMPTY).device_state == EMPTY


@pytest.mark.parametrize("state", [LOADING, READY, GENERATING, UNLOADING])
def test_a_dead_engine_leads_to_empty_from_anywhere(state: int) -> None:
    assert EMPTY in ARROWS[state]


def test_no_arrow_but_those_of_the_table_is_taken() -> None:
    for start, end in itertools.product(ARROWS, ARROWS):
        lifecycle = Lifecycle()
        lifecycle._state = start
        if end == start or end in ARROWS[start]:
            lifecycle.enter(end)
            assert lifecycle.device_state == end
        else:
            with pytest.raises(InternalError):
                lifecycle.enter(end)


def test_a_generation_never_starts_from_empty() -> None:
    with pytest.raises(InternalError, match="EMPTY to WORKER_STATE_GENERATING"):
        reach(GENERATING)


def test_an_overtaken_end_changes_nothing() -> None:
    lifecycle = reach(LOADING, UNLOADING)
    lifecycle.enter_if(LOADING, READY)
    assert lifecycle.device_state == UNLOADING


def test_draining_hides_what_the_device_does_and_never_ends() -> None:
    lifecycle = reach(LOADING, READY, GENERATING)
    lifecycle.drain()
    assert lifecycle.reported_state == DRAINING
    lifecycle.enter(READY)
    assert lifecycle.reported_state == DRAINING
    assert lifecycle.device_state == READY


def test_a_device_that_does_not_answer_hides_everything_else() -> None:
    lifecycle = reach(LOADING)
    lifecycle.drain()
    lifecycle.has_failed = True
    assert lifecycle.reported_state == FAILED
    lifecycle.has_failed = False
    assert lifecycle.reported_state == DRAINING
