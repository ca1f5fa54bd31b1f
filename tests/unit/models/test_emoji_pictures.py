"""Pictures, composition and pixel art of the emoji model, on three drawn shapes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from models.emoji.training.compose import COLOURS, LAYOUTS, NORMAL, Scenes, Sprites, compose
from models.emoji.training.latents import pack, plain_scenes, unpack
from models.emoji.training.pictures import crop_square, load_index, load_pixels
from models.emoji.training.pixel_art import pixelate, pixelness
from models.emoji.training.prepare import folder_pictures
from tests.unit.models.icons import drawing, write_icons


@pytest.fixture
def sprites(tmp_path: Path) -> Sprites:
    write_icons(tmp_path)
    return Sprites(load_pixels(tmp_path / "pictures.zip", 1), "cpu")


def scene(layout: int, picture: int = 0, mirrored: bool = False, partner: int = -1) -> Scenes:
    row = np.array
    navy = list(COLOURS).index("navy")
    return Scenes(row([picture]), row([layout]), row([navy]), row([mirrored]), row([partner]))


def test_cropping_makes_the_drawing_touch_the_border() -> None:
    alpha = np.asarray(crop_square(drawing("green bar")).getchannel("A"))
    assert alpha[80, 0] > 200
    assert alpha[80, -1] > 200
    assert alpha[:40].max() == 0


def test_an_empty_picture_is_refused() -> None:
    with pytest.raises(ValueError, match="transparent"):
        crop_square(Image.new("RGBA", (8, 8), (0, 0, 0, 0)))


def test_the_background_is_exact_and_the_object_is_where_its_layout_says(sprites: Sprites) -> None:
    for row, layout in enumerate(LAYOUTS):
        pixels = ((compose(sprites, scene(row), np.array([0]))[0] + 1) * 127.5).round()
        mask = (pixels - torch.tensor(COLOURS["navy"])[:, None, None]).abs().amax(0) > 40
        ys, xs = torch.nonzero(mask, as_tuple=True)
        assert abs(int(xs.min()) - layout.left) <= 2
        assert abs(int(ys.min()) - layout.top) <= 2
        assert abs(int(xs.max() - xs.min()) + 1 - layout.object_px) <= 3
        if row == NORMAL:
            assert tuple(int(v) for v in pixels[:, 0, 0]) == COLOURS["navy"]


def test_mirroring_flips_and_pairs_draw_two(sprites: Sprites) -> None:
    row = np.array([0])
    plain = compose(sprites, scene(NORMAL, 4), row)
    assert torch.equal(compose(sprites, scene(NORMAL, 4, mirrored=True), row), plain.flip(-1))
    small_left = next(i for i, x in enumerate(LAYOUTS) if (x.size, x.place) == ("small", "left"))
    pair = compose(sprites, scene(small_left, 0, partner=2), row)[0]
    assert pair[0, 64, 32] > 0.5  # the red square
    assert pair[2, 64, 96] > 0.5  # the blue disc


def test_packing_is_undone_by_unpacking() -> None:
    latents = torch.randn(2, 16, 16, 16)
    assert pack(latents).shape == (2, 64, 64)
    assert torch.equal(unpack(pack(latents)), latents)


def test_pixelating_makes_perfect_pixel_art_and_keeps_the_background(sprites: Sprites) -> None:
    pixels = compose(sprites, plain_scenes(6, "pink"), np.arange(6))
    art = pixelate(pixels)
    assert torch.allclose(pixelness(art), torch.ones(6))
    assert pixelness(torch.rand(1, 3, 128, 128)).item() == pytest.approx(0.25, abs=0.02)
    assert torch.equal(art[:, :, 0, 0], pixels[:, :, 0, 0])


def test_your_own_folder_becomes_a_picture_set(tmp_path: Path) -> None:
    drawing("blue disc").save(tmp_path / "disc.png")
    names = {"disc.png": {"names": ["blue disc", "dot"], "style": "flat"}}
    (tmp_path / "names.json").write_text(json.dumps(names))
    pictures, payloads = folder_pictures(tmp_path, tmp_path / "names.json")
    assert pictures[0].names == ("blue disc", "dot")
    assert len(payloads[0]) > 100
    (tmp_path / "names.json").write_text(json.dumps({"gone.png": "x"}))
    with pytest.raises(ValueError, match=r"gone\.png"):
        folder_pictures(tmp_path, tmp_path / "names.json")


def test_the_index_reads_back(tmp_path: Path) -> None:
    assert write_icons(tmp_path) == load_index(tmp_path / "pictures.zip")
