"""Where the pictures come from: three pinned npm packages, fetched with ``npm pack``.

Does not know which pictures are wanted or what they are called in captions (`selection`).
Invariant: versions are pinned, so two runs see the same bytes.
"""

from __future__ import annotations

import io
import json
import subprocess
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image

FLUENT_3D = "@lobehub/fluent-emoji-3d@1.1.0"  # Fluent Emoji, (c) Microsoft, MIT
NOTO = "@iconify-json/noto@1.2.9"  # Noto Emoji, (c) Google, Apache-2.0
METADATA = "emoji-datasource@16.0.0"  # names and categories only, MIT


@dataclass(frozen=True)
class Drawing:
    """One drawing of one emoji, before any choice: its code points and how to draw it."""

    code: str
    """Lower-case hexadecimal code points joined by '-', without variation selectors."""
    style: str
    """'3d' or 'flat'."""
    payload: bytes
    """An encoded picture (3d) or a UTF-8 SVG document (flat)."""


def fetch(package: str, folder: Path) -> Path:
    """Download one npm package once and return the path of its tarball."""
    folder.mkdir(parents=True, exist_ok=True)
    name, version = package.rsplit("@", 1)
    tarball = folder / f"{name.lstrip('@').replace('/', '-')}-{version}.tgz"
    if not tarball.exists():
        subprocess.run(["npm", "pack", "--silent", package], cwd=folder, check=True)
    return tarball


def canonical_code(code: str) -> str:
    """'0023-FE0F-20E3' -> '23-20e3': lower case, no leading zeros, no variation selector 16."""
    parts = [part.lstrip("0") for part in code.lower().split("-")]
    return "-".join(part for part in parts if part != "fe0f")


def read_json(tarball: Path, member: str) -> Any:
    """Parse one JSON file inside an npm tarball."""
    with tarfile.open(tarball) as archive:
        handle = archive.extractfile(f"package/{member}")
        assert handle is not None, f"{member} is not a file in {tarball.name}"
        return json.load(handle)


def fluent_drawings(tarball: Path) -> list[Drawing]:
    """Every 256 px picture of Fluent Emoji 3D."""
    drawings = []
    with tarfile.open(tarball) as archive:
        for member in archive:
            path = Path(member.name)
            handle = archive.extractfile(member) if path.suffix == ".webp" else None
            if handle is not None:
                drawings.append(Drawing(canonical_code(path.stem), "3d", handle.read()))
    return drawings


def noto_drawings(tarball: Path) -> list[Drawing]:
    """Every Noto drawing that has a code point, as an SVG document."""
    icons = read_json(tarball, "icons.json")
    chars = read_json(tarball, "chars.json")
    drawings = []
    for code, name in chars.items():
        icon = icons["icons"].get(name)
        if icon is not None:
            svg = svg_document(icon["body"], icons.get("width", 16), icons.get("height", 16))
            drawings.append(Drawing(canonical_code(code), "flat", svg.encode()))
    return drawings


def svg_document(body: str, width: int, height: int) -> str:
    """Wrap an Iconify body into a standalone SVG document."""
    return (
        '<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" '
        f'viewBox="0 0 {width} {height}">{body}</svg>'
    )


def rasterize(drawing: Drawing, side_px: int) -> Image.Image:
    """Draw one drawing as RGBA, `side_px` square at least as the drawing itself allows."""
    if drawing.style == "3d":
        return Image.open(io.BytesIO(drawing.payload)).convert("RGBA")
    import resvg_py  # only this stage needs it

    png = resvg_py.svg_to_bytes(drawing.payload.decode(), width=side_px, height=side_px)
    return Image.open(io.BytesIO(bytes(png))).convert("RGBA")
