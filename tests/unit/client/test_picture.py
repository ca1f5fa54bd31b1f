"""A picture is saved whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from darkroom.client import Picture
from darkroom.v1 import generation_pb2, job_pb2


@pytest.fixture
def picture() -> Picture:
    output = generation_pb2.Output(content_type="image/png", width=8, height=4, seed=7, size_bytes=3)
    output.engagements.add(knob="scheme", engaged="none")
    return Picture(b"abc", job_pb2.Job(id="j1", output=output))


def test_it_tells_what_it_is(picture: Picture) -> None:
    assert (picture.format, picture.width, picture.height, picture.seed) == ("png", 8, 4, 7)
    assert [item.knob for item in picture.engagements] == ["scheme"]
    assert repr(picture) == "Picture(png, 8x4, 3 bytes, seed=7, job='j1')"


def test_it_is_saved_under_its_name_and_nothing_else_is_left(picture: Picture, tmp_path: Path) -> None:
    assert picture.save(tmp_path / "a.png") == tmp_path / "a.png"
    assert (tmp_path / "a.png").read_bytes() == b"abc"
    assert os.listdir(tmp_path) == ["a.png"]


def test_an_existing_file_is_replaced_or_refused(picture: Picture, tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"old")
    with pytest.raises(FileExistsError, match=r"a\.png exists already"):
        picture.save(tmp_path / "a.png", overwrite=False)
    assert (tmp_path / "a.png").read_bytes() == b"old"
    picture.save(tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes() == b"abc"
    assert os.listdir(tmp_path) == ["a.png"]


def test_a_failed_save_leaves_nothing(picture: Picture, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError, match="folder"):
        picture.save(tmp_path / "folder")
    with pytest.raises(FileNotFoundError):
        picture.save(tmp_path / "nowhere" / "a.png")
    assert os.listdir(tmp_path) == ["folder"]


def test_a_long_name_fits(picture: Picture, tmp_path: Path) -> None:
    name = "x" * 250 + ".png"
    assert picture.save(tmp_path / name).name == name
