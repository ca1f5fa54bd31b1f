"""What the structure of picture files tells, against Pillow; and the rules that it is held to."""

from __future__ import annotations

import contextlib
import io
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageOps

from darkroom.images import UnreadableImageError, describe_image, image_violations, read_header, size_after
from darkroom.v1 import generation_pb2, model_pb2
from tests.engines.snapshots import file_of_image, png_that_claims, reference, scene

KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "png": ("PNG", {}),
    "jpeg": ("JPEG", {}),
    "progressive jpeg": ("JPEG", {"progressive": True}),
    "webp": ("WEBP", {}),
    "lossless webp": ("WEBP", {"lossless": True}),
}
SAMPLES = [file_of_image(scene(), kind, 6, **options) for kind, options in KINDS.values()]


def problem_of(data: bytes) -> str:
    """What a file is refused with."""
    return image_violations([reference(data)], "request.images").get("request.images[0].data", "")


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", KINDS)
def test_a_header_is_what_pillow_finds_in_every_format_and_orientation(kind: str, orientation: int) -> None:
    name, options = KINDS[kind]
    data = file_of_image(scene(97, 65), name, orientation, **options)
    found, picture = read_header(data), Image.open(io.BytesIO(data))
    assert (found.width, found.height) == picture.size
    assert found.orientation == orientation
    assert found.content_type == picture.get_format_mimetype()
    assert found.shown_size == ImageOps.exif_transpose(picture).size
    assert problem_of(data) == ""


@pytest.mark.parametrize("sample", SAMPLES, ids=KINDS)
def test_a_file_that_is_cut_anywhere_is_refused(sample: bytes) -> None:
    for length in range(0, len(sample), max(1, len(sample) // 200)):
        assert problem_of(sample[:length]), length


@given(st.sampled_from(SAMPLES), st.data())
def test_no_bytes_make_the_reader_fail_otherwise_than_by_name(sample: bytes, data: st.DataObject) -> None:
    changed = bytearray(sample)
    for place, value in data.draw(st.lists(st.tuples(st.integers(0, len(sample) - 1), st.integers(0, 255)))):
        changed[place] = value
    with contextlib.suppress(UnreadableImageError):
        found = read_header(bytes(changed[: data.draw(st.integers(0, len(sample)))]))
        assert 1 <= found.orientation <= 8


def test_a_changed_byte_of_a_png_is_found_by_its_checksum() -> None:
    sample = bytearray(SAMPLES[0])
    sample[len(sample) // 2] ^= 1
    assert "wrong checksum" in problem_of(bytes(sample))


def test_what_is_no_still_picture_is_refused_with_what_it_is() -> None:
    frames = [scene(seed=seed) for seed in range(2)]
    for kind in ("PNG", "WEBP"):
        assert "moves" in problem_of(file_of_image(frames[0], kind, save_all=True, append_images=frames[1:]))
    assert "is empty" in problem_of(b"")
    for foreign in (b"GIF89a" + bytes(20), b"<svg xmlns='http://www.w3.org/2000/svg'/>", b"II*\0" + bytes(20)):
        assert "no PNG, JPEG or WebP" in problem_of(foreign)
    assert foreign[:8].hex(" ") in problem_of(foreign)


def test_sizes_are_judged_by_the_header_alone() -> None:
    assert "10,000,000,000 pixels" in problem_of(png_that_claims(100_000, 100_000))
    assert "63x64 pixels; each side has at least 64" in problem_of(file_of_image(scene(63, 64)))
    assert "at most 8 times" in problem_of(file_of_image(scene(8 * 64 + 1, 64)))
    assert problem_of(file_of_image(scene(8 * 64, 64))) == ""
    assert problem_of(png_that_claims(8192, 4096)) == ""
    assert "33,558,528 pixels" in problem_of(png_that_claims(8193, 4096))


def test_bytes_are_bounded_for_each_file_and_for_all() -> None:
    large = SAMPLES[1] + bytes(5 * 2**20)
    assert problem_of(large) == ""
    assert "8,388,608" in problem_of(large + bytes(4 * 2**20))
    found = image_violations([reference(large)] * 3, "request.images")
    assert found.keys() == {"request.images"}
    assert "12,582,912" in found["request.images"]


def test_a_hash_that_is_not_the_files_and_an_unknown_role_are_named() -> None:
    image = generation_pb2.InputImage(data=SAMPLES[0], sha256="0" * 64, role=9)  # type: ignore[arg-type]
    found = image_violations([image], "request.images")
    assert found.keys() == {"request.images[0].sha256", "request.images[0].role"}
    image.sha256 = describe_image(image).sha256
    image.role = generation_pb2.IMAGE_ROLE_REFERENCE
    assert not image_violations([image], "request.images")


def test_a_description_has_the_shown_size_and_no_bytes() -> None:
    told = describe_image(reference(SAMPLES[1]))
    assert (told.width, told.height) == (64, 96)
    assert (told.content_type, told.size_bytes, told.data) == ("image/jpeg", len(SAMPLES[1]), b"")


@given(st.integers(64, 6000), st.integers(64, 6000))
def test_an_output_without_a_size_has_the_pictures_proportions_on_the_models_lattice(width: int, height: int) -> None:
    defaults = model_pb2.GenerationDefaults(width=1024, height=1024)
    limits = model_pb2.GenerationLimits(min_side=256, max_side=2048, side_multiple=16)
    made = size_after(generation_pb2.InputImage(width=width, height=height), defaults, limits)
    assert all(256 <= side <= 2048 and side % 16 == 0 for side in made)
    assert made[0] * made[1] <= 1024 * 1024 * 1.1
    if max(width, height) <= 4 * min(width, height):
        assert made[0] / made[1] == pytest.approx(width / height, rel=0.05)


def test_a_square_gives_the_models_own_size() -> None:
    defaults = model_pb2.GenerationDefaults(width=1024, height=1024)
    limits = model_pb2.GenerationLimits(min_side=256, max_side=2048, side_multiple=16)
    sizes = [(640, 640), (1600, 1200), (1200, 1600)]
    made = [size_after(generation_pb2.InputImage(width=w, height=h), defaults, limits) for w, h in sizes]
    assert made == [(1024, 1024), (1184, 880), (880, 1184)]
