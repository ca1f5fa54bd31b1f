"""The measures of the emoji model, on pictures whose content is known because we drew them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from models.emoji.retrieval import Reference, load_reference
from models.emoji.training import compositions, evaluate, grid, reference_set
from models.emoji.training.captions import Wish
from models.emoji.training.compose import LAYOUTS, NORMAL, PAIR_LEFT, Scenes, Sprites, compose
from models.emoji.training.latents import plain_scenes
from models.emoji.training.pictures import load_pixels
from tests.unit.models.icons import write_icons


@pytest.fixture
def work(tmp_path: Path) -> Path:
    write_icons(tmp_path)
    return tmp_path


@pytest.fixture
def reference(work: Path) -> Reference:
    pixels = load_pixels(work / "pictures.zip", 1)
    reference_set.atlas(pixels).save(work / "atlas.webp", quality=90)
    pictures = reference_set.load_index(work / "pictures.zip")
    (work / "names.json").write_text(reference_set.names_json(pictures))
    return load_reference(work)


def to_image(pixels: torch.Tensor) -> Image.Image:
    return Image.fromarray(((pixels + 1) * 127.5).round().byte().permute(1, 2, 0).numpy())


def draw(work: Path, scenes: Scenes, canvas_px: int = 128) -> list[Image.Image]:
    sprites = Sprites(load_pixels(work / "pictures.zip", 1), "cpu", canvas_px)
    return [to_image(p) for p in compose(sprites, scenes, np.arange(len(scenes)))]


def test_perfect_pictures_are_judged_perfect(work: Path, reference: Reference) -> None:
    images = draw(work, plain_scenes(6, "beige"))
    names = ["red square", "red square", "blue disc", "blue disc", "green bar", "green bar"]
    wishes = [Wish(name, "3d", "beige") for name in names]
    summary = evaluate.summarize(evaluate.judge(images, wishes, work, reference))
    assert summary["nearest"] == summary["background"] == summary["reference_nearest"] == 1.0
    assert summary["reference_distance_q95"] < 0.03


def test_wrong_pictures_are_judged_wrong(work: Path, reference: Reference) -> None:
    images = draw(work, plain_scenes(6, "beige"))[:1]
    outcome = evaluate.judge(images, [Wish("blue disc", "3d", "navy")], work, reference)[0]
    assert not outcome.nearest
    assert not outcome.background
    assert not outcome.reference_nearest


def test_wishes_cover_trained_names_only_and_repeat_for_a_seed(reference: Reference) -> None:
    wishes = evaluate.draw_wishes(reference, 20, seed=1)
    assert {wish.name for wish in wishes} <= set(reference.all_names())
    assert wishes == evaluate.draw_wishes(reference, 20, seed=1)


def test_layouts_and_pairs_are_recognised(work: Path) -> None:
    layouts = np.array([NORMAL, 1, 2, len(LAYOUTS) - 1, PAIR_LEFT])
    scenes = Scenes(
        np.array([0, 2, 4, 0, 0]), layouts, np.zeros(5, int), np.zeros(5, bool), np.array([-1, -1, -1, -1, 2])
    )
    sprites = Sprites(load_pixels(work / "pictures.zip", 1), "cpu", evaluate.MEASURE_PX)
    images = draw(work, scenes)
    singles = [compositions.judge_single(sprites, images[row], scenes, row) for row in range(4)]
    assert all(outcome["layout"] for outcome in singles)
    codes, styles = np.array(list("001122")), np.array(["3d", "flat"] * 3)
    pair = compositions.judge_pair(sprites, images[4], scenes, 4, codes, styles)
    assert pair == {"pair_left": True, "pair_right": True}
    assert compositions.summarize([*singles, pair])["layout"] == "4 / 4"


def test_blind_pages_hide_the_prompts(tmp_path: Path) -> None:
    images = [Image.new("RGB", (128, 128), (i * 10, 0, 0)) for i in range(14)]
    grid.write_blind(images, [f"prompt {i}" for i in range(14)], tmp_path, seed=0)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["key.json", "page-0.png", "page-1.png"]
    assert grid.sheet(images, 8, 32).size == (256, 64)
