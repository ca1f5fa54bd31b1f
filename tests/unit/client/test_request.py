"""What may be asked for, and what is refused before it leaves."""

from __future__ import annotations

from typing import Any

import pytest

from darkroom.client._request import MAX_SEED, build_request, build_terms, spread_seeds
from darkroom.rpc.errors import InvalidRequestError
from darkroom.v1 import generation_pb2, job_pb2, plan_pb2


def test_what_is_not_said_stays_absent() -> None:
    request = build_request("a house", {})
    assert request == generation_pb2.GenerationRequest(model="emoji", prompt="a house")
    assert build_request("a house", {"steps": None, "seed": None}) == request


def test_zero_is_a_value() -> None:
    request = build_request("", {"seed": 0, "guidance": 0.0, "steps": 0, "negative_prompt": ""})
    for field in ("seed", "guidance", "steps", "negative_prompt"):
        assert request.HasField(field)


def test_every_field_arrives() -> None:
    preferences = plan_pb2.PlanPreferences(memory_mode=plan_pb2.MEMORY_MODE_LOW_VRAM)
    request = build_request(
        "a house",
        {
            "model": "flux.1-dev",
            "negative_prompt": "blurry",
            "width": 64,
            "height": 32,
            "steps": 4,
            "guidance": 2.5,
            "seed": MAX_SEED,
            "format": "webp",
            "preferences": preferences,
        },
    )
    assert request == generation_pb2.GenerationRequest(
        model="flux.1-dev",
        prompt="a house",
        negative_prompt="blurry",
        width=64,
        height=32,
        steps=4,
        guidance=2.5,
        seed=MAX_SEED,
        format=generation_pb2.OUTPUT_FORMAT_WEBP,
        preferences=preferences,
    )


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("seed", -1),
        ("seed", MAX_SEED + 1),
        ("width", 2**31),
        ("width", "wide"),
        ("steps", 1.5),
        ("format", "gif"),
        ("preferences", "fast"),
        ("guidance", "much"),
        ("colour", "red"),
    ],
)
def test_a_value_that_does_not_fit_is_named(field: str, value: Any) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        build_request("a house", {field: value})  # type: ignore[misc]
    assert set(refused.value.violations) == {f"request.{field}"}


def test_a_prompt_that_is_no_text_is_named() -> None:
    with pytest.raises(InvalidRequestError, match=r"request\.prompt"):
        build_request(7, {})  # type: ignore[arg-type]
    with pytest.raises(InvalidRequestError, match=r"request\.prompt"):
        build_request("\ud800", {})


def test_seeds_follow_each_other() -> None:
    assert spread_seeds(7, 3) == [7, 8, 9]
    drawn = spread_seeds(None, 4)
    assert [seed - drawn[0] for seed in drawn] == [0, 1, 2, 3]
    assert drawn[0] < 2**53


@pytest.mark.parametrize(("seed", "count"), [(MAX_SEED, 2), (-1, 1), (0, 0), (0, 1001)])
def test_seeds_past_the_end_are_refused(seed: int, count: int) -> None:
    with pytest.raises(InvalidRequestError):
        spread_seeds(seed, count)
    assert spread_seeds(MAX_SEED, 1) == [MAX_SEED]


def test_a_deadline_is_a_term_of_the_job_and_no_field_of_the_picture() -> None:
    assert build_request("a house", {"deadline_s": 2.5}) == build_request("a house", {})
    terms = job_pb2.JobTerms()
    terms.deadline.FromMilliseconds(2500)
    assert build_terms({"deadline_s": 2.5}) == terms
    assert build_terms({"deadline_s": None}) is None
    for wrong in ("soon", float("nan"), float("inf"), 1e30):
        with pytest.raises(InvalidRequestError, match=r"terms\.deadline"):
            build_terms({"deadline_s": wrong})  # type: ignore[typeddict-item]


def test_a_priority_is_a_term_of_the_job() -> None:
    assert build_terms({"priority": "high"}) == job_pb2.JobTerms(priority=job_pb2.JOB_PRIORITY_HIGH)
    with pytest.raises(InvalidRequestError, match=r"terms\.priority"):
        build_terms({"priority": "urgent"})  # type: ignore[typeddict-item]
