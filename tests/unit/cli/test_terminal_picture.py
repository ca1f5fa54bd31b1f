"""Pictures in the terminal, and the small PNG reader behind them."""

from __future__ import annotations

import base64
import io
import random
import re

import pytest
from rich.console import Console

from darkroom.cli.png import read_pixels
from darkroom.cli.terminal_picture import find_protocol, iterm2_escape, kitty_escape, show_picture
from darkroom.client import Picture
from darkroom.client.fakes._paint import paint
from darkroom.v1 import generation_pb2, job_pb2

DATA = paint(generation_pb2.GenerationRequest(prompt="a cat", seed=7, width=64, height=64))
PICTURE = Picture(DATA, job_pb2.Job(output=generation_pb2.Output(content_type="image/png", width=64, height=64)))


@pytest.mark.parametrize("mode", ["RGB", "RGBA"])
@pytest.mark.parametrize("size", [(1, 1), (7, 5), (64, 48)])
def test_the_reader_sees_what_pillow_wrote(mode: str, size: tuple[int, int]) -> None:
    image_module = pytest.importorskip("PIL.Image")
    noise = random.Random(7).randbytes(size[0] * size[1] * len(mode))
    # Pillow filters each row as suits it, so that noise and gradients together meet every filter.
    for image in (
        image_module.frombytes(mode, size, noise),
        image_module.linear_gradient("L").resize(size).convert(mode),
    ):
        file = io.BytesIO()
        image.save(file, "PNG")
        rows = read_pixels(file.getvalue())
        assert rows is not None
        assert [list(pixel) for row in rows for pixel in row] == [
            list(image.getpixel((x, y))[:3]) for y in range(size[1]) for x in range(size[0])
        ]


@pytest.mark.parametrize("data", [b"", b"GIF89a", DATA[:40], DATA[:-30], DATA[:33] + DATA[60:]])
def test_what_is_no_whole_png_is_left_alone(data: bytes) -> None:
    rows = read_pixels(data)
    assert rows is None or len(rows) == 64


@pytest.mark.parametrize(
    ("environment", "protocol"),
    [
        ({"TERM": "xterm-kitty"}, "kitty"),
        ({"TERM_PROGRAM": "ghostty", "TERM": "xterm-ghostty"}, "kitty"),
        ({"TERM_PROGRAM": "iTerm.app"}, "iterm2"),
        ({"LC_TERMINAL": "iTerm2"}, "iterm2"),
        ({"TERM": "screen-256color", "TERM_PROGRAM": "iTerm.app"}, None),
        ({"TERM": "xterm-256color"}, None),
        ({}, None),
    ],
)
def test_a_terminal_is_known_by_what_it_says(environment: dict[str, str], protocol: str | None) -> None:
    assert find_protocol(environment) == protocol


def test_the_escapes_carry_the_whole_file() -> None:
    data = random.Random(7).randbytes(10_000)
    pieces = re.findall(r"\x1b_G([^;]*);([^\x1b]*)\x1b\\", kitty_escape(data))
    assert [control for control, _ in pieces] == ["a=T,f=100,m=1", "m=1", "m=1", "m=0"]
    assert all(len(piece) <= 4096 for _, piece in pieces)
    assert base64.standard_b64decode("".join(piece for _, piece in pieces)) == data
    assert iterm2_escape(b"abc") == "\x1b]1337;File=inline=1;size=3:YWJj\x07\n"


def test_other_terminals_get_half_blocks_that_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TERM_PROGRAM", "LC_TERMINAL", "KITTY_WINDOW_ID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    file = io.StringIO()
    show_picture(Console(file=file, force_terminal=True, color_system="truecolor", width=100, height=30), PICTURE)
    lines = file.getvalue().splitlines()
    assert len(lines) == 21
    assert all(line.count("▀") == 42 for line in lines)


def test_nothing_is_shown_where_there_is_no_terminal() -> None:
    file = io.StringIO()
    show_picture(Console(file=file), PICTURE)
    assert file.getvalue() == ""
