"""Do sizes, places, mirroring and pairs come out as asked? Random composed scenes, not plain ones.

Single scenes: the painted picture is compared with the asked subject in every layout, both ways
round; it is right if the asked one is the nearest (RGB distance at 64 px). Mirroring counts only for
subjects that differ from their mirror image. Pairs: each half must be nearest to its own subject
among all pictures of that style drawn there. Writes ``evaluation/compositions.json``.

Invariant: scenes come from a seed that training never used, so pairs are new pairs.
"""

from __future__ import annotations

import argparse
import json
import random
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from models.emoji.training.captions import prompt
from models.emoji.training.compose import LAYOUTS, NORMAL, PAIR_LEFT, PAIR_RIGHT, Scenes, Sprites, compose
from models.emoji.training.evaluate import MEASURE_PX, to_pixels
from models.emoji.training.painting import Settings, load_pipeline, paint
from models.emoji.training.pictures import load_index, load_pixels
from models.emoji.training.scenes import draw_scenes, wish_of
from models.emoji.training.workspace import add_model_argument, add_work_argument

SEED = 99
SYMMETRIC = 0.02
"""Mean squared difference from the mirror image below which a drawing counts as symmetric."""


def repeat(scenes: Scenes, row: int, **columns: np.ndarray) -> Scenes:
    """One scene many times, with some columns replaced."""
    count = len(next(iter(columns.values())))
    return Scenes(**{**vars(scenes.take(np.full(count, row))), **columns})


def nearest(sprites: Sprites, image: Image.Image, candidates: Scenes, half: slice) -> int:
    """The candidate that looks most like the picture within some columns of pixels."""
    drawn = compose(sprites, candidates, np.arange(len(candidates)))[..., half]
    painted = to_pixels(image)[None, ..., half]
    return int((drawn - painted).square().mean(dim=(1, 2, 3)).argmin())


def judge_single(sprites: Sprites, image: Image.Image, scenes: Scenes, row: int) -> dict[str, bool]:
    """Whether layout and direction are as asked."""
    num_layouts = len(LAYOUTS)
    layouts, mirrored = np.tile(np.arange(num_layouts), 2), np.repeat([False, True], num_layouts)
    candidates = repeat(scenes, row, layout=layouts, mirrored=mirrored)
    found = nearest(sprites, image, candidates, slice(None))
    outcome = {"layout": bool(layouts[found] == scenes.layout[row])}
    both = compose(sprites, repeat(scenes, row, mirrored=np.array([False, True])), np.arange(2))
    if (both[0] - both[1]).square().mean() > SYMMETRIC:
        key = "mirrored" if scenes.mirrored[row] else "not_mirrored"
        outcome[key] = bool(mirrored[found] == scenes.mirrored[row])
    return outcome


def judge_pair(
    sprites: Sprites, image: Image.Image, scenes: Scenes, row: int, codes: np.ndarray, styles: np.ndarray
) -> dict[str, bool]:
    """Whether the left and the right half show their subjects."""
    own = np.flatnonzero(styles == styles[scenes.picture[row]])
    middle = MEASURE_PX // 2
    alone = np.full(len(own), -1)
    outcome = {}
    for side, asked, layout, half in (
        ("pair_left", scenes.picture[row], PAIR_LEFT, slice(0, middle)),
        ("pair_right", scenes.partner[row], PAIR_RIGHT, slice(middle, None)),
    ):
        columns = {"picture": own, "layout": np.full(len(own), layout), "partner": alone}
        found = own[nearest(sprites, image, repeat(scenes, row, **columns), half)]
        outcome[side] = bool(codes[found] == codes[asked])
    return outcome


def choose_rows(scenes: Scenes, count: int) -> np.ndarray:
    """A third pairs, a third mirrored, a third other layouts than the plain one."""
    pairs = np.flatnonzero(scenes.partner >= 0)
    mirrored = np.flatnonzero(scenes.mirrored)
    others = np.flatnonzero((scenes.partner < 0) & (scenes.layout != NORMAL))
    rng = np.random.default_rng(SEED)
    return np.concatenate([rng.choice(rows, count // 3, replace=False) for rows in (pairs, mirrored, others)])


def summarize(outcomes: list[dict[str, bool]]) -> dict[str, str]:
    """'right / judged' for every kind of judgement."""
    kinds = sorted({kind for outcome in outcomes for kind in outcome})
    counted = {kind: [o[kind] for o in outcomes if kind in o] for kind in kinds}
    return {kind: f"{sum(values)} / {len(values)}" for kind, values in counted.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_work_argument(parser)
    add_model_argument(parser)
    parser.add_argument("--num-scenes", type=int, default=96)
    parser.add_argument("--threads", type=int, default=2, help="CPU threads (%(default)s)")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    archive: Path = options.work / "pictures.zip"
    pictures = load_index(archive)
    codes, styles = (np.array([getattr(p, key) for p in pictures]) for key in ("code", "style"))
    scenes = draw_scenes(pictures, 2, seed=SEED)
    rows = choose_rows(scenes, options.num_scenes)
    rng = random.Random(SEED)
    texts = [prompt(wish_of(scenes, row, pictures, rng)) for row in rows]
    images = paint(load_pipeline(options.model), texts, [2000 + i for i in range(len(rows))], Settings())
    sprites = Sprites(load_pixels(archive, num_threads=2), "cpu", MEASURE_PX)
    outcomes = [
        judge_pair(sprites, image, scenes, row, codes, styles)
        if scenes.partner[row] >= 0
        else judge_single(sprites, image, scenes, row)
        for image, row in zip(images, rows, strict=True)
    ]
    summary = summarize(outcomes)
    misses = [text for text, outcome in zip(texts, outcomes, strict=True) if not all(outcome.values())]
    report = {"num_scenes": len(rows), "summary": summary, "misses": misses}
    (options.model / "evaluation" / "compositions.json").write_text(json.dumps(report, indent=1) + "\n")
    print(summary)


if __name__ == "__main__":
    main()
