"""A slow engine is not a hung one."""

from __future__ import annotations

import pytest

from darkroom.v1 import generation_pb2, plan_pb2
from services.worker.watchdog import DEFAULTS_S, FIELDS, ProgressWatch, idle_budget_s


def budgets(**seconds: float) -> plan_pb2.IdleBudgets:
    message = plan_pb2.IdleBudgets()
    for name, value in seconds.items():
        getattr(message, name).FromNanoseconds(int(value * 1e9))
    return message


@pytest.mark.parametrize("phase", list(FIELDS))
def test_each_phase_has_the_budget_of_its_plan_or_a_default(phase: int) -> None:
    assert idle_budget_s(budgets(**{FIELDS[phase]: 7.5}), phase) == 7.5
    assert idle_budget_s(budgets(), phase) == DEFAULTS_S[phase]
    assert idle_budget_s(budgets(**{FIELDS[phase]: 0}), phase) == DEFAULTS_S[phase]


def test_a_compile_of_a_minute_and_a_step_of_half_a_minute_are_no_hangs_by_default() -> None:
    assert DEFAULTS_S[generation_pb2.PHASE_COMPILING] > 60
    assert DEFAULTS_S[generation_pb2.PHASE_DENOISING] > 34


def test_only_progress_moves_the_clock_and_the_phase_chooses_the_budget() -> None:
    now = 0.0
    watch = ProgressWatch(budgets(encode=5, denoise=2), generation_pb2.PHASE_ENCODING, lambda: now)
    now = 4.0
    assert watch.remaining_s == 1.0
    watch.saw(generation_pb2.Progress(phase=generation_pb2.PHASE_DENOISING))
    assert watch.remaining_s == 2.0
    assert watch.phase_name == "denoising"
    now = 6.5
    assert watch.idle_s == 2.5
    assert watch.remaining_s == -0.5
    watch.saw(None)
    assert watch.remaining_s == 2.0


def test_pictures_that_are_made_together_may_take_as_many_times_as_long() -> None:
    now = 0.0
    watch = ProgressWatch(budgets(encode=5), generation_pb2.PHASE_ENCODING, lambda: now, at_once=3)
    now = 14.0
    assert (watch.budget_s, watch.remaining_s) == (15, 1)
