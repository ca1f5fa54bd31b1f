"""Which failures are retried, and at whose charge."""

from __future__ import annotations

import pytest

from darkroom.rpc import errors
from services.gateway.running.verdict import Verdict, final_error, judge

TABLE = [
    (errors.WorkerLostError("x"), Verdict.LOST),
    (errors.EngineDiedError("x"), Verdict.DEATH),
    (errors.EngineHungError("x"), Verdict.DEATH),
    (errors.DrainingError("x"), Verdict.RELEASE),
    (errors.WorkerHeldError("x"), Verdict.RELEASE),
    (errors.NoPlannerError("x"), Verdict.RELEASE),
    (errors.StaleTokenError("x"), Verdict.ABANDON),
    (errors.OutOfMemoryError("x"), Verdict.FAIL),
    (errors.InvalidRequestError({"a": "b"}), Verdict.FAIL),
    (errors.NothingFitsError("x"), Verdict.FAIL),
    (errors.PlanRefusedError("x"), Verdict.FAIL),
    (errors.SourceRefusedError("x"), Verdict.FAIL),
    (errors.CorruptCheckpointError("x"), Verdict.FAIL),
    (errors.BrokenOutputError("x"), Verdict.FAIL),
    (errors.UnsupportedError("x"), Verdict.FAIL),
    (errors.InternalError("x"), Verdict.FAIL),
    (errors.DiskFullError("x"), Verdict.LOST),
    (errors.UnavailableError("x"), Verdict.LOST),
    (errors.CancelledError("x"), Verdict.LOST),
]


@pytest.mark.parametrize(("error", "verdict"), TABLE, ids=lambda value: getattr(value, "reason", ""))
def test_each_failure_has_its_verdict(error: errors.DarkroomError, verdict: Verdict) -> None:
    assert judge(error, is_cancel_wanted=False) is verdict


@pytest.mark.parametrize("death", [errors.EngineDiedError, errors.EngineHungError])
def test_a_death_that_several_jobs_share_is_charged_to_none(death: type[errors.DarkroomError]) -> None:
    assert judge(death("x", suspects=3), is_cancel_wanted=False) is Verdict.SUSPECT


def test_a_wanted_cancellation_is_final() -> None:
    assert judge(errors.CancelledError("x"), is_cancel_wanted=True) is Verdict.FAIL


def test_poison_carries_its_evidence() -> None:
    error = final_error(errors.EngineDiedError("killed", signal=9), Verdict.DEATH, 2)
    assert (error.reason, error.facts["signal"], error.facts["last_reason"]) == ("POISON", "9", "ENGINE_DIED")
    assert not error.is_retryable
