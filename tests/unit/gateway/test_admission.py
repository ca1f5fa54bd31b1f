"""Admission: what is filled in, and which field is named for what."""

from __future__ import annotations

import hashlib
import math
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from darkroom.knowledge import load_catalogue
from darkroom.rpc.errors import InvalidRequestError, UnknownModelError
from darkroom.rpc.request_ids import check_request_id
from darkroom.v1 import checkpoint_pb2, device_pb2, generation_pb2, plan_pb2
from services.gateway.admission import admit, bare, check_preferences, kind_of, shape_of
from tests.engines.snapshots import file_of_image, reference, scene
from tests.fakes.catalogue import TINY, FakeCatalogue

CATALOGUE = FakeCatalogue()


def admitted(**fields: object) -> generation_pb2.GenerationRequest:
    request = generation_pb2.GenerationRequest(**{"model": "tiny", "prompt": "a red apple", **fields})  # type: ignore[arg-type]
    return admit(request, CATALOGUE.message)


def violations(**fields: object) -> dict[str, str]:
    with pytest.raises(InvalidRequestError) as refused:
        admitted(**fields)
    return refused.value.violations


def test_absent_fields_take_the_models_defaults() -> None:
    full = admitted(model="small")
    assert full.model == "tiny"
    assert (full.width, full.height, full.steps, full.guidance) == (128, 128, 4, 3.0)
    assert full.negative_prompt == "blurry"
    assert full.format == generation_pb2.OUTPUT_FORMAT_PNG
    assert full.HasField("seed")
    assert full.seed < 2**53


def test_jobs_of_one_shape_differ_in_prompt_seed_and_format_only() -> None:
    shape = shape_of(admitted())
    other = {"prompt": "a cat", "negative_prompt": "x", "seed": 7, "format": generation_pb2.OUTPUT_FORMAT_JPEG}
    assert shape_of(admitted(**other)) == shape
    assert shape.startswith("128x128 ")
    wishes = plan_pb2.PlanPreferences(attention=plan_pb2.ATTENTION_BACKEND_NATIVE)
    for change in ({"steps": 5}, {"guidance": 3.5}, {"width": 64}, {"model": "plain"}, {"preferences": wishes}):
        assert shape_of(admitted(**change)) != shape


def test_zero_and_empty_are_values_where_they_mean_something() -> None:
    full = admitted(seed=0, guidance=0.0, negative_prompt="")
    assert (full.seed, full.guidance, full.negative_prompt) == (0, 0.0, "")


def test_the_largest_seed_is_kept() -> None:
    assert admitted(seed=2**64 - 1).seed == 2**64 - 1


def test_a_model_without_negative_prompts_refuses_one_and_gets_none() -> None:
    assert admitted(model="plain").negative_prompt == ""
    assert list(violations(model="plain", negative_prompt="ugly")) == ["request.negative_prompt"]


def test_every_wrong_field_is_named_at_once_with_its_value_and_what_would_be_right() -> None:
    found = violations(width=100, height=0, steps=0, guidance=-1.0, prompt="", format=9)
    assert found == {
        "request.prompt": "is empty; say what to show",
        "request.width": "is 100; tiny takes 64 to 256 pixels in multiples of 16, such as 96",
        "request.height": "is 0; tiny takes 64 to 256 pixels in multiples of 16",
        "request.steps": "is 0; tiny takes 1 to 50",
        "request.guidance": "is -1; tiny takes 0 to 20",
        "request.format": "is 9; known are OUTPUT_FORMAT_PNG, OUTPUT_FORMAT_JPEG, OUTPUT_FORMAT_WEBP",
    }


def test_the_limits_travel_with_the_refusal() -> None:
    with pytest.raises(InvalidRequestError) as refused:
        admitted(width=4096)
    assert refused.value.facts["max_side_pixels"] == "256"


@pytest.mark.parametrize("prompt", ["", " ", "\n\t", "x" * 501, "nul\0"])
def test_prompts_that_say_nothing_or_too_much_are_refused(prompt: str) -> None:
    assert list(violations(prompt=prompt)) == ["request.prompt"]


def test_the_longest_prompt_is_accepted() -> None:
    assert admitted(prompt="🦊" * 500).prompt == "🦊" * 500


@pytest.mark.parametrize("guidance", [math.nan, math.inf, -math.inf, -0.1, 20.1])
def test_guidance_must_be_finite_and_in_range(guidance: float) -> None:
    assert list(violations(guidance=guidance)) == ["request.guidance"]


def test_unknown_preferences_are_named() -> None:
    wishes = plan_pb2.PlanPreferences(scheme=99, memory_mode=98, speed_mode=97)  # type: ignore[arg-type]
    names = {"preferences.scheme", "preferences.memory_mode", "preferences.speed_mode"}
    assert set(violations(preferences=wishes)) == {f"request.{name}" for name in names}
    with pytest.raises(InvalidRequestError) as refused:
        check_preferences(wishes)
    assert set(refused.value.violations) == names


def test_a_missing_model_is_a_wrong_field_and_an_unknown_one_is_not_found() -> None:
    assert list(violations(model="")) == ["request.model"]
    with pytest.raises(UnknownModelError, match="close: tiny"):
        admitted(model="tinny")


def test_kinds_differ_by_model_and_preferences_only() -> None:
    wishes = plan_pb2.PlanPreferences(scheme=device_pb2.SCHEME_INT8)
    kinds = [kind_of(admitted(**fields)) for fields in ({}, {"seed": 1, "width": 64}, {"preferences": wishes})]
    assert kinds[0] == kinds[1] == "tiny/0.0.0"
    assert kinds[2] == "tiny/3.0.0"


@pytest.mark.parametrize("request_id", ["7", "not-a-uuid", "{12345678-1234-5678-1234-567812345678}", "0" * 32, "\0"])
def test_a_request_id_is_a_uuid(request_id: str) -> None:
    with pytest.raises(InvalidRequestError):
        check_request_id(request_id)


def test_uuids_of_either_case_and_none_at_all_are_fine() -> None:
    for request_id in ("", str(uuid.uuid4()), str(uuid.uuid4()).upper()):
        check_request_id(request_id)


@given(
    width=st.integers(-(2**31), 2**31 - 1) | st.integers(0, 300),
    height=st.integers(-(2**31), 2**31 - 1) | st.integers(0, 300),
    steps=st.integers(-(2**31), 2**31 - 1) | st.integers(-2, 60),
    guidance=st.floats(),
    prompt=st.text(max_size=600),
    negative=st.text(max_size=600),
    seed=st.integers(0, 2**64 - 1),
)
def test_what_is_admitted_is_within_every_limit(
    width: int, height: int, steps: int, guidance: float, prompt: str, negative: str, seed: int
) -> None:
    fields = {"width": width, "height": height, "steps": steps, "guidance": guidance, "seed": seed}
    try:
        full = admitted(**fields, prompt=prompt, negative_prompt=negative)
    except InvalidRequestError:
        return
    limits = TINY.limits
    for side in (full.width, full.height):
        assert limits.min_side <= side <= limits.max_side
        assert side % limits.side_multiple == 0
    assert 1 <= full.steps <= limits.max_steps
    assert 0 <= full.guidance <= limits.max_guidance
    assert full.prompt.strip()
    assert "\0" not in full.prompt + full.negative_prompt
    assert max(len(full.prompt), len(full.negative_prompt)) <= limits.max_prompt_characters
    assert full.seed == seed


def request_with(*files: bytes, model: str = "flux.2-klein-4b", **fields: object) -> generation_pb2.GenerationRequest:
    request = generation_pb2.GenerationRequest(model=model, prompt="make it blue", **fields)  # type: ignore[arg-type]
    request.images.extend(reference(file) for file in files)
    return request


@pytest.mark.parametrize(
    ("model", "count", "problem"),
    [
        ("flux.1-kontext-dev", 0, "are missing; flux.1-kontext-dev changes pictures: bring 1 to 1"),
        ("qwen-image-edit-2511", 4, "are 4; qwen-image-edit-2511 takes at most 3"),
        ("emoji", 1, "are 1; emoji paints from words alone; leave them out"),
    ],
)
def test_a_request_brings_as_many_pictures_as_its_model_takes(model: str, count: int, problem: str) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        admit(request_with(*[file_of_image(scene())] * count, model=model), load_catalogue().message)
    assert refused.value.violations == {"request.images": problem}


def test_a_video_model_that_starts_from_a_picture_is_refused_by_name() -> None:
    with pytest.raises(InvalidRequestError, match="which requests can't bring to it yet"):
        admit(request_with(model="wan2.2-i2v-a14b"), load_catalogue().message)


def test_a_picture_that_breaks_a_rule_is_named_with_every_other_wrong_field() -> None:
    with pytest.raises(InvalidRequestError) as refused:
        admit(request_with(file_of_image(scene()), b"GIF89a", steps=0), load_catalogue().message)
    assert refused.value.violations.keys() == {"request.images[1].data", "request.steps"}


def test_an_admitted_picture_is_described_without_its_file_and_gives_the_size_where_none_is_named() -> None:
    data, find = file_of_image(scene(160, 120), "JPEG", 6), load_catalogue().message
    full = admit(request_with(data), find)
    assert [image.data for image in full.images] == [b""]
    assert full.images[0].sha256 == hashlib.sha256(data).hexdigest()
    assert (full.images[0].width, full.images[0].height) == (120, 160)
    assert (full.width, full.height) == (880, 1184)
    named = admit(request_with(data, width=512), find)
    assert (named.width, named.height) == (512, 1024)
    assert bare(request_with(data), full).images == full.images
    assert not bare(request_with(data), full).HasField("width")


def test_a_job_that_brings_pictures_runs_alone_on_the_plan_of_its_kind() -> None:
    find = load_catalogue().message
    words, brings = admit(request_with(), find), admit(request_with(file_of_image(scene())), find)
    assert kind_of(words) == kind_of(brings)
    assert shape_of(words) != shape_of(brings) == ""


def test_random_weights_are_another_kind_of_job_than_real_ones() -> None:
    wishes = plan_pb2.PlanPreferences()
    wishes.source.kind = checkpoint_pb2.CHECKPOINT_KIND_RANDOM
    assert kind_of(admitted(preferences=wishes)) != kind_of(admitted())
