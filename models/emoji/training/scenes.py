"""Decide which scenes are trained and what their captions say.

Does not know pixels. Invariant: the same picture set and seed give the same table, so the tokens
and the latents, made by different processes, belong together row by row.
"""

from __future__ import annotations

import random

import numpy as np

from models.emoji.training.captions import Wish, caption
from models.emoji.training.compose import COLOUR_NAMES, LAYOUTS, PAIR_LEFT, PAIR_WEIGHT, Scenes
from models.emoji.training.pictures import Picture

MIRRORED = 0.08
WHITE = 0.30
FIRST_NAME = 0.5


def draw_scenes(pictures: list[Picture], num_versions: int, seed: int = 0) -> Scenes:
    """`num_versions` scenes of every picture, the pictures in order within each version.

    Every picture therefore weighs the same, whatever its number of names.
    """
    rng = np.random.default_rng(seed)
    num_pictures = len(pictures)
    picture = np.tile(np.arange(num_pictures), num_versions)
    count = len(picture)
    weights = np.array([layout.weight for layout in LAYOUTS])
    layout = rng.choice(len(LAYOUTS), count, p=weights / weights.sum())
    colour = rng.integers(1, len(COLOUR_NAMES), count)
    colour[rng.random(count) < WHITE] = COLOUR_NAMES.index("white")
    is_mirrorable = np.array([p.is_mirrorable for p in pictures])[picture]
    mirrored = is_mirrorable & (rng.random(count) < MIRRORED)
    partner = _draw_partners(pictures, picture, rng)
    is_pair = rng.random(count) < PAIR_WEIGHT
    partner[~is_pair] = -1
    layout[is_pair] = PAIR_LEFT
    mirrored[is_pair] = False
    return Scenes(picture, layout, colour, mirrored, partner)


def _draw_partners(pictures: list[Picture], picture: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """A random other picture of the same style for every row."""
    partner = np.empty_like(picture)
    styles = np.array([p.style for p in pictures])
    for style in np.unique(styles):
        rows = np.flatnonzero(styles[picture] == style)
        partner[rows] = rng.choice(np.flatnonzero(styles == style), len(rows))
    return partner


def choose_name(picture: Picture, rng: random.Random) -> str:
    """The first name half of the time, else any."""
    return picture.names[0] if rng.random() < FIRST_NAME else rng.choice(picture.names)


def wish_of(scenes: Scenes, row: int, pictures: list[Picture], rng: random.Random) -> Wish:
    """What a caption of one scene may say."""
    picture = pictures[scenes.picture[row]]
    layout = LAYOUTS[scenes.layout[row]]
    colour = COLOUR_NAMES[scenes.colour[row]]
    partner_row = scenes.partner[row]
    if partner_row >= 0:
        partner = choose_name(pictures[partner_row], rng)
        return Wish(choose_name(picture, rng), picture.style, colour, partner=partner)
    return Wish(
        choose_name(picture, rng), picture.style, colour, layout.size, layout.place,
        bool(scenes.mirrored[row]), is_only_style=picture.is_only_style,
    )  # fmt: skip


def draw_captions(scenes: Scenes, pictures: list[Picture], num_captions: int, seed: int = 0) -> list[str]:
    """`num_captions` wordings of every scene, in row order."""
    rng = random.Random(seed)
    return [
        caption(wish_of(scenes, row, pictures, rng), rng) for row in range(len(scenes)) for _ in range(num_captions)
    ]
