"""A run as a picture: every fault as a mark in its lane, jobs in flight, jobs that ended a second.

Knows nothing of what is judged. Invariant: all three share one axis of seconds.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

from tests.chaos.history import History
from tests.chaos.schedule import WEIGHTS

WIDTH, LEFT, RIGHT = 1600, 150, 20
LANE, TOP, PANEL, GAP = 16, 40, 150, 34
INK, GRID, PAPER = "#24292f", "#d8dee4", "#ffffff"
COLOURS = {
    "kill": "#cf222e",
    "term": "#bc4c00",
    "stop": "#8250df",
    "cut": "#0969da",
    "stall": "#1b7c83",
    "slow": "#57606a",
    "full": "#9a6700",
    "step": "#116329",
}


def draw_timeline(history: History, path: Path) -> None:
    """Writes the picture."""
    seconds = max((line["t"] for line in history.lines()), default=1.0) + 1
    lanes = list(WEIGHTS)
    flight_top = TOP + LANE * len(lanes) + GAP
    ended_top = flight_top + PANEL + GAP
    image = Image.new("RGB", (WIDTH, ended_top + PANEL + GAP), PAPER)
    draw = ImageDraw.Draw(image)
    font = ImageFont.load_default(12)
    scale = (WIDTH - LEFT - RIGHT) / seconds
    bottom = ended_top + PANEL
    _draw_axis(draw, font, seconds, scale, bottom)
    _draw_faults(draw, font, history, lanes, scale)
    in_flight, ended = _count(history, int(seconds) + 1)
    for top, name, values in ((flight_top, "jobs in flight", in_flight), (ended_top, "ended a second", ended)):
        most = max([*values, 1])
        draw.text((8, top + PANEL / 2 - 6), f"{name}", INK, font)
        draw.text((8, top + PANEL / 2 + 10), f"at most {most}", INK, font)
        for second, value in enumerate(values):
            height = PANEL * value / most
            left = LEFT + second * scale
            draw.rectangle((left, top + PANEL - height, left + max(1.0, scale - 0.3), top + PANEL), "#54aeff")
        draw.line((LEFT, top + PANEL, WIDTH - RIGHT, top + PANEL), INK)
    image.save(path, optimize=True)


def _draw_axis(draw: ImageDraw.ImageDraw, font: ImageFont.ImageFont, seconds: float, scale: float, bottom: int) -> None:
    every = next(step for step in (5, 10, 30, 60, 120, 300, 3600) if seconds / step <= 20)
    for second in range(0, int(seconds) + 1, every):
        x = LEFT + second * scale
        draw.line((x, TOP - 6, x, bottom), GRID)
        draw.text((x + 2, 14), f"{second} s" if every < 60 else f"{second // 60} min", INK, font)


def _draw_faults(
    draw: ImageDraw.ImageDraw, font: ImageFont.ImageFont, history: History, lanes: list[str], scale: float
) -> None:
    for place, kind in enumerate(lanes):
        draw.text((8, TOP + place * LANE), kind, INK, font)
    for line in history.lines("fault"):
        top = TOP + lanes.index(line["kind"]) * LANE
        left = LEFT + line["t"] * scale
        lasts = line["seconds"] if line["kind"].split()[0] not in ("kill", "term") else 0
        draw.rectangle(
            (left, top + 2, left + max(2.0, lasts * scale), top + LANE - 4), COLOURS[line["kind"].split()[0]]
        )


def _count(history: History, num_seconds: int) -> tuple[list[int], list[int]]:
    """Jobs in flight at each second, and jobs that were seen to end in it."""
    begun: Counter[int] = Counter()
    ended: Counter[int] = Counter()
    for line in history.lines("wanted", "ended", "gave up"):
        (begun if line["what"] == "wanted" else ended)[int(line["t"])] += 1
    in_flight, now = [], 0
    for second in range(num_seconds):
        now += begun[second] - ended[second]
        in_flight.append(max(0, now))
    return in_flight, [ended[second] for second in range(num_seconds)]
