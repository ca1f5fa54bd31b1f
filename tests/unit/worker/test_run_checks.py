"""What a run needs before anything of it is made."""

from __future__ import annotations

import pytest

from darkroom.rpc.errors import InvalidRequestError
from services.worker.run_checks import check_call, check_items
from tests.engines.worker_server import item, rehearsal_plan


def test_a_runs_items_are_complete_named_apart_and_alike() -> None:
    check_items([item("a"), item("b", "other", seed=2)])
    unfilled = item("a")
    unfilled.request.ClearField("seed")
    for items in ([], [item("a"), item("a")], [item("")], [item("a", steps=4), item("b", steps=5)], [unfilled]):
        with pytest.raises(InvalidRequestError):
            check_items(items)


def test_a_pipeline_that_needs_a_picture_can_not_be_called_yet() -> None:
    plan = rehearsal_plan()
    check_call(plan)
    plan.call.needs_image = True
    with pytest.raises(InvalidRequestError, match="changes a picture that the request brings"):
        check_call(plan)
