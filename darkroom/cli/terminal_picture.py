"""Shows a picture in the terminal: as the terminal's own graphics where it has them, else as coloured half blocks.

Knows nothing of jobs. Invariant: nothing is written where the output is no terminal.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Iterator, Mapping

from rich.console import Console
from rich.segment import Segment, Segments
from rich.style import Style

from darkroom.cli.png import Pixel, read_pixels
from darkroom.client import Picture

# Kitty's protocol sends at most this much in one escape (sw.kovidgoyal.net/kitty/graphics-protocol).
KITTY_CHUNK = 4096
MAX_COLUMNS = 64
LINES_AROUND = 9
UPPER_HALF = "▀"


def show_picture(console: Console, picture: Picture) -> None:
    """Writes the picture to the console, in the best way that its terminal has."""
    if not console.is_terminal:
        return
    protocol = find_protocol(os.environ)
    if protocol == "kitty" and picture.format == "png":
        _write(console, kitty_escape(picture.data))
    elif protocol == "iterm2":
        _write(console, iterm2_escape(picture.data))
    elif console.color_system is not None and picture.format == "png":
        rows = read_pixels(picture.data)
        if rows:
            console.print(Segments(half_blocks(rows, _columns(console))))


def find_protocol(environment: Mapping[str, str]) -> str | None:
    """Returns "kitty", "iterm2" or None, by what terminals say of themselves. Inside tmux and screen neither works."""
    terminal, program = environment.get("TERM", ""), environment.get("TERM_PROGRAM", "")
    if "TMUX" in environment or terminal.startswith(("screen", "tmux")):
        return None
    if "KITTY_WINDOW_ID" in environment or terminal == "xterm-kitty" or program.lower() == "ghostty":
        return "kitty"
    if program in ("iTerm.app", "WezTerm", "mintty") or environment.get("LC_TERMINAL") == "iTerm2":
        return "iterm2"
    return None


def kitty_escape(data: bytes) -> str:
    """Returns the escapes that transmit a PNG and show it."""
    encoded = base64.standard_b64encode(data).decode()
    pieces = [encoded[start : start + KITTY_CHUNK] for start in range(0, len(encoded), KITTY_CHUNK)]
    escapes = []
    for index, piece in enumerate(pieces):
        control = "a=T,f=100," if index == 0 else ""
        escapes.append(f"\x1b_G{control}m={int(index < len(pieces) - 1)};{piece}\x1b\\")
    return "".join(escapes) + "\n"


def iterm2_escape(data: bytes) -> str:
    """Returns the escape that shows a picture of any format inline."""
    return f"\x1b]1337;File=inline=1;size={len(data)}:{base64.standard_b64encode(data).decode()}\x07\n"


def half_blocks(rows: list[list[Pixel]], num_columns: int) -> Iterator[Segment]:
    """Yields coloured half blocks: each character shows two pixels, one over the other."""
    height, width = len(rows), len(rows[0])
    columns = min(num_columns, width)
    lines = max(1, round(height / width * columns / 2))
    small = [[_average(rows, x, y, columns, 2 * lines) for x in range(columns)] for y in range(2 * lines)]
    for y in range(0, 2 * lines, 2):
        for upper, lower in zip(small[y], small[y + 1], strict=True):
            yield Segment(UPPER_HALF, Style(color=_hex(upper), bgcolor=_hex(lower)))
        yield Segment.line()


def _average(rows: list[list[Pixel]], x: int, y: int, columns: int, lines: int) -> Pixel:
    """Returns the mean colour of the pixels that fall into one cell."""
    height, width = len(rows), len(rows[0])
    top, bottom = y * height // lines, max(y * height // lines + 1, (y + 1) * height // lines)
    left, right = x * width // columns, max(x * width // columns + 1, (x + 1) * width // columns)
    cell = [pixel for row in rows[top:bottom] for pixel in row[left:right]]
    red, green, blue = (sum(channel) // len(cell) for channel in zip(*cell, strict=True))
    return red, green, blue


def _columns(console: Console) -> int:
    """A square of so many columns is half as many lines, and leaves room for what was printed before it."""
    return max(2, min(MAX_COLUMNS, console.width, 2 * (console.height - LINES_AROUND)))


def _hex(pixel: Pixel) -> str:
    return "#{:02x}{:02x}{:02x}".format(*pixel)


def _write(console: Console, escapes: str) -> None:
    console.file.write(escapes)
    console.file.flush()
