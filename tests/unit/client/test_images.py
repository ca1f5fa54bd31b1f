"""Pictures from what a caller has at hand, and what is refused before it leaves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from darkroom.client._request import build_request
from darkroom.rpc.errors import InvalidRequestError
from tests.engines.snapshots import file_of_image, scene

DATA = file_of_image(scene())


def brought(images: Any) -> list[bytes]:
    return [image.data for image in build_request("make it blue", {"images": images}).images]


def test_paths_bytes_and_pillow_images_arrive_in_order_and_one_needs_no_list(tmp_path: Path) -> None:
    photo = tmp_path / "photo.jpg"
    photo.write_bytes(file_of_image(scene(seed=1), "JPEG"))
    assert brought([photo, DATA, scene(), str(photo)]) == [photo.read_bytes(), DATA, DATA, photo.read_bytes()]
    for one in (photo, str(photo), DATA, scene()):
        assert len(brought(one)) == 1
    assert brought([]) == []


def test_what_can_not_be_sent_is_named_by_place_and_path(tmp_path: Path) -> None:
    notes, film = tmp_path / "notes.txt", tmp_path / "film.mp4"
    notes.write_text("dear diary")
    film.write_bytes(b"\x89PNG" + bytes(9 * 2**20))
    for source, field, problem in (
        (notes, "request.images[1].data", f"{str(notes)!r} begins with 64 65"),
        (film, "request.images[1].data", "a picture has at most 8,388,608"),
        (tmp_path / "absent.png", "request.images[1]", "No such file"),
        (tmp_path, "request.images[1]", "can't be read"),
        (7, "request.images[1]", "int can't be read: give a path, the bytes of a file, or a Pillow image"),
    ):
        with pytest.raises(InvalidRequestError) as refused:
            brought([DATA, source])
        assert refused.value.violations.keys() == {field}
        assert problem in refused.value.violations[field]
