"""The language of the model: what a caption of a scene looks like.

Does not know pixels or tokenizers. `prompt` is the canonical sentence; `caption` draws one of its
variants. Invariant: a caption determines its picture. What is left unsaid has one meaning: no style
means 3d where a subject has it, no background means white, no size and place mean centred.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

STYLE_WORDS = {
    "3d": (*("3d style",) * 4, "3d emoji", "3d", "in 3d style"),
    "flat": (*("flat style",) * 4, "flat emoji", "flat", "in flat style"),
    "pixel art": ("pixel art style", "pixel art style", "pixel art"),
}  # fmt: skip
SIZE_WORDS = {"": ("",), "large": ("large", "large", "big", "huge"),
              "small": ("small", "small", "little", "tiny")}  # fmt: skip
PLACES = {
    "": "", "left": "on the left", "right": "on the right", "top": "at the top",
    "bottom": "at the bottom", "top left": "in the top left corner",
    "top right": "in the top right corner", "bottom left": "in the bottom left corner",
    "bottom right": "in the bottom right corner",
}  # fmt: skip

# Shares of the variants. Small, so that the model spends its capacity on pictures.
STYLE_UNSAID = 0.12
WHITE_UNSAID = 0.35
BARE_ARTICLE = 0.25
SHUFFLED = 0.15
CAPITALISED = 0.12
FULL_STOP = 0.05


@dataclass(frozen=True)
class Wish:
    """Everything a caption can say."""

    name: str
    style: str
    """'3d', 'flat', or '' to leave the style unsaid."""
    background: str = "white"
    size: str = ""
    place: str = ""
    is_mirrored: bool = False
    partner: str = ""
    """Name of a second object on the right."""
    is_only_style: bool = False
    """Whether the subject has no other style."""


def with_article(name: str, adjective: str = "") -> str:
    """'apple' -> 'an apple'; 'apple', 'large' -> 'a large apple'."""
    words = f"{adjective} {name}".strip()
    return f"{'an' if words[0] in 'aeiou' else 'a'} {words}"


def prompt(wish: Wish) -> str:
    """The canonical caption: 'a red apple, 3d style, blue background'."""
    subject = with_article(wish.name, wish.size)
    if wish.partner:
        subject = f"{subject} and {with_article(wish.partner)}"
    parts = [f"{subject} {PLACES[wish.place]}".strip()]
    parts += ["mirrored"] if wish.is_mirrored else []
    parts += [f"{wish.style} style"] if wish.style else []
    return ", ".join([*parts, f"{wish.background} background"])


def caption(wish: Wish, rng: random.Random) -> str:
    """One random wording of the same scene."""
    size = rng.choice(SIZE_WORDS[wish.size])
    bare = rng.random() < BARE_ARTICLE
    subject = f"{size} {wish.name}".strip() if bare else with_article(wish.name, size)
    if wish.partner:
        subject += " and " + (wish.partner if bare else with_article(wish.partner))
    clauses = ["mirrored"] if wish.is_mirrored else []
    may_be_unsaid = wish.style == "3d" or wish.is_only_style
    if wish.style and not (may_be_unsaid and rng.random() < STYLE_UNSAID):
        clauses.append(rng.choice(STYLE_WORDS[wish.style]))
    if wish.background != "white" or rng.random() >= WHITE_UNSAID:
        clauses.append(_background_words(wish.background, rng))
    if rng.random() < SHUFFLED:
        rng.shuffle(clauses)
    text = ", ".join([f"{subject} {PLACES[wish.place]}".strip(), *clauses])
    text = text[0].upper() + text[1:] if rng.random() < CAPITALISED else text
    return text + "." if rng.random() < FULL_STOP else text


def _background_words(colour: str, rng: random.Random) -> str:
    draw = rng.random()
    if draw < 0.8:
        return f"{colour} background"
    return f"on a {colour} background" if draw < 0.92 else f"on {colour}"
