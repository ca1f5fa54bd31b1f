"""What a run needs before anything of it is made."""

from __future__ import annotations

import pytest

from darkroom.rpc.errors import InvalidRequestError
from darkroom.v1 import worker_pb2
from services.worker.run_checks import check_call, check_items
from tests.engines.snapshots import file_of_image, reference, scene
from tests.engines.worker_server import item, rehearsal_plan


def test_a_runs_items_are_complete_named_apart_and_alike() -> None:
    check_items([item("a"), item("b", "other", seed=2)])
    unfilled = item("a")
    unfilled.request.ClearField("seed")
    for items in ([], [item("a"), item("a")], [item("")], [item("a", steps=4), item("b", steps=5)], [unfilled]):
        with pytest.raises(InvalidRequestError):
            check_items(items)


def bringing(count: int) -> worker_pb2.RunItem:
    wanted = item("a")
    wanted.request.images.extend([reference(file_of_image(scene()))] * count)
    return wanted


@pytest.mark.parametrize(
    ("needs", "most", "count", "problem"),
    [
        (False, 0, 0, ""),
        (False, 0, 1, "paints from words alone and takes none"),
        (False, 3, 0, ""),
        (False, 3, 3, ""),
        (False, 3, 4, "are 4; rehearsal takes at most 3"),
        (True, 1, 0, "changes pictures that the request brings, 1 to 1 of them"),
        (True, 1, 1, ""),
        (True, 0, 1, "can't be brought to rehearsal yet"),
    ],
)
def test_a_request_brings_as_many_pictures_as_the_pipeline_takes(
    needs: bool, most: int, count: int, problem: str
) -> None:
    plan = rehearsal_plan()
    plan.call.needs_image, plan.call.max_images = needs, most
    if not problem:
        check_call(plan, [bringing(count)])
        return
    with pytest.raises(InvalidRequestError, match=problem) as caught:
        check_call(plan, [bringing(count)])
    assert caught.value.violations.keys() == {"items[0].request.images"}


def test_a_picture_that_breaks_a_rule_is_named_by_its_place() -> None:
    wanted = bringing(2)
    wanted.request.images[1].data = b"GIF89a"
    with pytest.raises(InvalidRequestError, match="no PNG, JPEG or WebP") as caught:
        check_items([item("b"), wanted])
    assert caught.value.violations.keys() == {"items[1].request.images[1].data"}
