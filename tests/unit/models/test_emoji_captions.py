"""The language of the emoji model: names, captions and scenes, without pictures or networks."""

from __future__ import annotations

import random

import pytest

from models.emoji.training.captions import Wish, caption, prompt
from models.emoji.training.compose import COLOUR_NAMES, LAYOUTS, PAIR_LEFT
from models.emoji.training.pictures import Picture, mark_only_styles
from models.emoji.training.scenes import draw_captions, draw_scenes
from models.emoji.training.selection import Entry, choose_subjects, is_wanted
from models.emoji.training.sources import canonical_code

PICTURES = [
    Picture("3d/1.webp", "1", "3d", ("red apple", "apple"), True),
    Picture("flat/1.webp", "1", "flat", ("red apple", "apple"), True),
    Picture("flat/2.webp", "2", "flat", ("owl",), False),
]


@pytest.mark.parametrize(
    ("wish", "sentence"),
    [
        (Wish("red apple", "3d", "blue"), "a red apple, 3d style, blue background"),
        (Wish("owl", "flat"), "an owl, flat style, white background"),
        (Wish("owl", "flat", size="large"), "a large owl, flat style, white background"),
        (Wish("owl", "", "navy", "small", "left"), "a small owl on the left, navy background"),
        (
            Wish("owl", "3d", is_mirrored=True),
            "an owl, mirrored, 3d style, white background",
        ),
        (
            Wish("cat", "3d", partner="owl"),
            "a cat and an owl, 3d style, white background",
        ),
    ],
)
def test_the_canonical_prompt_says_everything(wish: Wish, sentence: str) -> None:
    assert prompt(wish) == sentence


def test_every_wording_names_the_subject_and_any_colour_but_white() -> None:
    rng = random.Random(0)
    for colour in COLOUR_NAMES:
        for _ in range(50):
            text = caption(Wish("red apple", "flat", colour), rng).lower()
            assert "red apple" in text
            assert "flat" in text
            assert colour == "white" or colour in text


def test_the_style_is_left_unsaid_only_where_it_is_clear() -> None:
    rng = random.Random(0)
    for wish in (Wish("owl", "3d"), Wish("lime", "flat", is_only_style=True)):
        texts = [caption(wish, rng) for _ in range(300)]
        assert any(wish.style not in text for text in texts)
        assert any(wish.style in text for text in texts)


def test_a_subject_with_one_picture_is_marked() -> None:
    marked = mark_only_styles(PICTURES)
    assert [picture.is_only_style for picture in marked] == [False, False, True]


def test_an_emoji_keeps_its_first_name_and_shared_second_names_are_dropped() -> None:
    entries = [
        Entry("1", ("dog", "pet"), "Animals", "animal-mammal"),
        Entry("2", ("cat", "pet", "kitty"), "Animals", "animal-mammal"),
        Entry("3", ("kitten", "dog"), "Animals", "animal-mammal"),
    ]
    names = {subject.code: subject.names for subject in choose_subjects(entries)}
    assert names == {"1": ("dog",), "2": ("cat", "kitty"), "3": ("kitten",)}


@pytest.mark.parametrize(
    ("name", "subcategory", "wanted"),
    [
        ("red-apple", "food-fruit", True),
        ("brazil-flag", "country-flag", False),
        ("keycap-3", "keycap", False),
        ("woman-farmer", "person-role", False),
        ("farmer", "person-role", True),
        ("six-oclock", "time", False),
        ("middle-finger", "hand-single-finger", False),
    ],
)
def test_only_what_people_ask_for_is_learned(name: str, subcategory: str, wanted: bool) -> None:
    assert is_wanted(Entry("1", (name,), "x", subcategory)) is wanted


def test_codes_of_different_packages_meet() -> None:
    assert canonical_code("0023-FE0F-20E3") == canonical_code("23-20e3")


def test_scenes_are_equal_for_equal_seeds_and_weigh_every_picture_the_same() -> None:
    one, two = draw_scenes(PICTURES, 50, seed=3), draw_scenes(PICTURES, 50, seed=3)
    assert (one.colour == two.colour).all()
    assert (one.layout == two.layout).all()
    assert [(one.picture == row).sum() for row in range(3)] == [50, 50, 50]
    assert draw_captions(one, PICTURES, 1) == draw_captions(two, PICTURES, 1)


def test_what_may_not_be_mirrored_is_not_and_pairs_share_a_style() -> None:
    scenes = draw_scenes(PICTURES, 400, seed=1)
    assert not scenes.mirrored[scenes.picture == 2].any()
    pairs = scenes.partner >= 0
    assert 0 < pairs.sum() < len(scenes) / 4
    assert (scenes.layout[pairs] == PAIR_LEFT).all()
    styles = [p.style for p in PICTURES]
    for left, right in zip(scenes.picture[pairs], scenes.partner[pairs], strict=True):
        assert styles[left] == styles[right]


def test_places_differ_by_whole_tokens() -> None:
    """The same drawing at two places is shifted by a multiple of 16 px, one denoiser token."""
    for size in {layout.object_px for layout in LAYOUTS}:
        lefts = {layout.left for layout in LAYOUTS if layout.object_px == size}
        assert all((left - min(lefts)) % 16 == 0 for left in lefts)
