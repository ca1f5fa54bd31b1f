"""Progress never goes back; pages neither repeat nor skip."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from darkroom.rpc.errors import InvalidRequestError
from darkroom.rpc.paging import cut_page, make_token, page_size, read_token
from darkroom.v1 import generation_pb2
from services.gateway.running.progress import ProgressTruth

FRACTIONS = st.lists(st.tuples(st.booleans(), st.floats(), st.integers(-5, 99), st.integers(-5, 50)), max_size=30)


@given(FRACTIONS, st.floats(0, 1))
def test_whatever_a_worker_says_progress_is_true(said: list[tuple[bool, float, int, int]], reached: float) -> None:
    truth = ProgressTruth(reached)
    last = reached
    for is_load, fraction, completed, total in said:
        progress = generation_pb2.Progress(fraction=fraction, completed=completed, total=total)
        told = truth.of_load(progress) if is_load else truth.of_run(progress)
        assert last <= told.fraction <= 1
        assert told.completed >= 0
        assert total <= 0 or told.completed <= total
        last = told.fraction


def test_a_load_and_its_run_share_the_bar() -> None:
    truth = ProgressTruth()
    fractions = [truth.of_load(generation_pb2.Progress(fraction=value)).fraction for value in (0.5, 1.0)]
    fractions += [truth.of_run(generation_pb2.Progress(fraction=value)).fraction for value in (0.0, 0.5, 1.0)]
    assert fractions == [0.25, 0.5, 0.5, 0.75, 1.0]


@given(st.sets(st.text(min_size=1, max_size=5)), st.integers(1, 7))
def test_pages_put_together_are_the_list(names: set[str], size: int) -> None:
    items = sorted(names)
    seen: list[str] = []
    token = ""
    while True:
        page, token = cut_page(items, str, size, token, "q")
        seen += page
        assert len(page) <= size
        if not token:
            break
    assert seen == items


@given(st.text(max_size=40))
def test_a_foreign_token_is_refused(token: str) -> None:
    if token:
        with pytest.raises(InvalidRequestError):
            read_token(token, "q")


def test_tokens_belong_to_their_query_and_sizes_to_their_range() -> None:
    with pytest.raises(InvalidRequestError):
        read_token(make_token("x", "a"), "b")
    assert [page_size(asked, 50, 500) for asked in (0, 7, 9999)] == [50, 7, 500]
    with pytest.raises(InvalidRequestError):
        page_size(-1, 50, 500)
