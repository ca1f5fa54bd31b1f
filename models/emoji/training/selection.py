"""Which emoji are worth learning, and the names people call them by.

Does not know pictures: it sees code points, names and categories only.
Invariant: a name means one emoji. A name that two emoji claim is dropped from both, except that an
emoji's first name always stays its own.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

MAX_NAMES = 3
MAX_NAME_CHARS = 30
MAX_NAME_WORDS = 5

DROPPED_SUBCATEGORIES = frozenset({
    "country-flag", "subdivision-flag", "keycap", "alphanum", "arrow", "av-symbol",
    "transport-sign", "family", "currency", "gender", "other-symbol", "math", "zodiac",
})  # fmt: skip
DROPPED_NAMES = frozenset({
    "middle-finger", "love-hotel", "unknown-flag", "cigarette", "no-smoking", "no-littering",
    "non-potable-water", "no-bicycles", "no-pedestrians", "no-mobile-phones",
    "no-one-under-eighteen", "children-crossing", "deaf-man", "deaf-woman", "pregnant-man",
    "pregnant-person", "mx-claus", "wavy-dash", "placard", "small-orange-diamond",
    "small-blue-diamond", "person-frowning", "person-pouting", "person-bowing",
    "closed-mailbox-with-lowered-flag", "open-mailbox-with-lowered-flag", "selfie",
    "leftwards-thumb-sign", "rightwards-thumb-sign", "identification-card", "level-slider",
    "label", "card-index-dividers", "card-file-box", "card-index", "bookmark-tabs",
})  # fmt: skip
RUDE_WORDS = frozenset({"shit", "hankey", "fu", "gun", "facepunch"})
# Words of the Unicode names that nobody says.
_STILTED_WORDS = frozenset({
    "symbol", "sign", "pointing", "pointed", "index", "mag", "ornament", "silhouette", "multiple",
    "medium", "lower", "black", "white", "cancellation", "gua", "earth",
})  # fmt: skip

# Gender and direction variants of a person that is kept in its neutral form.
_VARIANT = re.compile(
    r"^(man|men|woman|women)-.+|.*-facing-right$|.*-oclock$|.*-thirty$|^letter-.$"
    r"|.*-(small|medium|medium-small)-square$|^family-.+|.*-button$|^keycap.*"
)
_TONE = re.compile(r"1f3f[b-f]")
_PLAIN = re.compile(r"[a-z0-9][a-z0-9 -]*")
# These carry a gender and have no neutral form, or are asked for by everyone.
_KEPT_VARIANTS = frozenset({"woman-dancing", "man-dancing", "woman-with-headscarf", "man-bald", "woman-red-hair"})
_MIRROR_EXCLUDED = ("Symbols", "Flags")


@dataclass(frozen=True)
class Entry:
    """What the metadata packages say about one emoji."""

    code: str
    names: tuple[str, ...]
    """Candidate names, hyphenated, the best first."""
    category: str
    subcategory: str


@dataclass(frozen=True)
class Subject:
    """One emoji that the model learns."""

    code: str
    names: tuple[str, ...]
    is_mirrorable: bool


def is_wanted(entry: Entry) -> bool:
    """Whether people would ask for this emoji: no flags, keycaps, arrows, variants of persons."""
    if not entry.names or _TONE.search(entry.code):
        return False
    first = entry.names[0]
    if first in _KEPT_VARIANTS:
        return True
    dropped = entry.subcategory in DROPPED_SUBCATEGORIES or first in DROPPED_NAMES
    return not dropped and not _VARIANT.match(first)


def spoken(name: str) -> str:
    """'Red-Apple' or 'red_apple' -> 'red apple'."""
    return re.sub(r"\s+", " ", re.sub(r"[_-]", " ", name.lower())).strip()


def is_speakable(name: str) -> bool:
    """Whether a second name can stand in a caption: plain, short, neither rude nor stilted."""
    words = name.split()
    return bool(
        _PLAIN.fullmatch(name)
        and 2 <= len(name) <= MAX_NAME_CHARS
        and len(words) <= MAX_NAME_WORDS
        and not (RUDE_WORDS | _STILTED_WORDS).intersection(words)
        and not re.search(r"\d$", name)
    )


def choose_subjects(entries: list[Entry]) -> list[Subject]:
    """Keep the wanted entries and give each its own one to four names."""
    wanted = [entry for entry in entries if is_wanted(entry)]
    firsts = Counter(spoken(entry.names[0]) for entry in wanted)
    wanted = [entry for entry in wanted if firsts[spoken(entry.names[0])] == 1]
    claims = Counter(name for entry in wanted for name in {spoken(n) for n in entry.names})
    subjects = []
    for entry in wanted:
        first = spoken(entry.names[0])
        others = dict.fromkeys(spoken(name) for name in entry.names[1:])
        own = [n for n in others if claims[n] == 1 and is_speakable(n) and first not in n]
        mirrorable = entry.category not in _MIRROR_EXCLUDED
        subjects.append(Subject(entry.code, (first, *own[: MAX_NAMES - 1]), mirrorable))
    return subjects
