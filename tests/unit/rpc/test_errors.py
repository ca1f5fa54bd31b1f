"""The error tree: every leaf crosses the wire and comes back as itself."""

from __future__ import annotations

import pytest

from darkroom.rpc.errors import (
    ERRORS_BY_REASON,
    Code,
    DarkroomError,
    InvalidRequestError,
    UnavailableError,
    error_from_message,
    error_to_message,
)
from darkroom.v1 import error_pb2

LEAVES = [leaf for leaf in ERRORS_BY_REASON.values() if leaf is not DarkroomError]


@pytest.mark.parametrize("leaf", LEAVES, ids=lambda leaf: leaf.__name__)
def test_an_error_survives_being_data(leaf: type[DarkroomError]) -> None:
    if issubclass(leaf, InvalidRequestError):
        error: DarkroomError = leaf({"request.width": "13; give a multiple of 16"}, max_side_pixels=256)
    else:
        error = leaf("what happened and what to do", needed_bytes=7)
    back = error_from_message(error_to_message(error))
    assert type(back) is leaf
    assert (back.message, back.facts, back.code) == (error.message, error.facts, error.code)
    assert getattr(back, "violations", None) == getattr(error, "violations", None)


def test_reasons_are_unique_and_fit_error_info() -> None:
    names = [leaf.reason for leaf in LEAVES]
    assert len(names) == len(set(names))
    assert all(name.replace("_", "").isupper() and len(name) <= 63 for name in names)


def test_a_retry_is_promised_only_where_waiting_can_help() -> None:
    retryable = {leaf.code for leaf in LEAVES if leaf.is_retryable}
    assert retryable == {Code.UNAVAILABLE, Code.RESOURCE_EXHAUSTED}
    assert UnavailableError.is_retryable


def test_a_reason_from_a_newer_service_is_kept() -> None:
    error = error_from_message(error_pb2.Error(code=14, reason="NEW_REASON", message="text", is_retryable=True))
    assert type(error) is DarkroomError
    assert (error.reason, error.is_retryable, error.code) == ("NEW_REASON", True, Code.UNAVAILABLE)
