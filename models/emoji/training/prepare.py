"""Stage 1: make ``pictures.zip`` from the two emoji packages, or from a folder of your own.

Your own icons: ``--folder icons --names names.json``, where names.json maps each file to its
name(s) and, if you like, a style:

    {"rocket.png": ["rocket", "space ship"], "moon.svg": {"names": ["moon"], "style": "flat"}}

PNG and WebP with transparency work best; SVG needs resvg_py. Everything after this stage is the
same for emoji and for your own icons.

Invariant: the same inputs give the same picture order, so later stages may store row numbers.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from models.emoji.training import sources
from models.emoji.training.pictures import STORED_PX, Picture, crop_square, encode_webp, mark_only_styles, save_pictures
from models.emoji.training.progress import track
from models.emoji.training.selection import Entry, choose_subjects
from models.emoji.training.workspace import add_work_argument


def emoji_entries(noto: Path, metadata: Path, codes: set[str]) -> list[Entry]:
    """Join the names of both packages: Noto's first, then its aliases, then emoji-datasource's."""
    chars = sources.read_json(noto, "chars.json")
    icons = sources.read_json(noto, "icons.json")
    rows = sources.read_json(metadata, "emoji.json")
    noto_names = {sources.canonical_code(code): name for code, name in chars.items()}
    aliases: dict[str, list[str]] = {}
    for alias, target in icons.get("aliases", {}).items():
        aliases.setdefault(target["parent"], []).append(alias)
    facts = {sources.canonical_code(row["unified"]): row for row in rows}
    entries = []
    for code in sorted(codes):
        fact = facts.get(code, {})
        first = noto_names.get(code)
        names = [first, *aliases.get(first, [])] if first else []
        names += [*fact.get("short_names", []), fact.get("name", "").lower()]
        names = [name.replace("_", "-") for name in names if name]
        known = (fact.get("category", ""), fact.get("subcategory", ""))
        entries.append(Entry(code, tuple(names), *known))
    return entries


def emoji_pictures(cache: Path) -> tuple[list[Picture], list[bytes]]:
    """Download, select, rasterise and encode the emoji."""
    fluent, noto, metadata = (
        sources.fetch(package, cache) for package in (sources.FLUENT_3D, sources.NOTO, sources.METADATA)
    )
    drawings = sources.fluent_drawings(fluent) + sources.noto_drawings(noto)
    entries = emoji_entries(noto, metadata, {drawing.code for drawing in drawings})
    subjects = {subject.code: subject for subject in choose_subjects(entries)}
    pictures, payloads = [], []
    wanted = {(d.code, d.style): d for d in drawings if d.code in subjects}
    for (code, style), drawing in track(sorted(wanted.items()), "drawing pictures"):
        subject = subjects[code]
        image = crop_square(sources.rasterize(drawing, STORED_PX * 2))
        file = f"{style}/{code}.webp"
        pictures.append(Picture(file, code, style, subject.names, subject.is_mirrorable))
        payloads.append(encode_webp(image))
    return pictures, payloads


def folder_pictures(folder: Path, names_file: Path) -> tuple[list[Picture], list[bytes]]:
    """Read a folder of pictures and the JSON that names them.

    Raises:
        ValueError: the JSON names a file that is not in the folder.
    """
    pictures, payloads = [], []
    for file, value in track(sorted(json.loads(names_file.read_text()).items()), "reading"):
        path = folder / file
        if not path.is_file():
            raise ValueError(f"{names_file} names {file}, which is not in {folder}")
        facts = value if isinstance(value, dict) else {"names": value}
        names = [facts["names"]] if isinstance(facts["names"], str) else facts["names"]
        style = facts.get("style", "flat")
        drawing_style = "flat" if path.suffix == ".svg" else "3d"
        drawing = sources.Drawing(path.stem, drawing_style, path.read_bytes())
        image = crop_square(sources.rasterize(drawing, STORED_PX * 2))
        stored = f"{style}/{path.stem}.webp"
        is_mirrorable = bool(facts.get("is_mirrorable", True))
        pictures.append(Picture(stored, path.stem, style, tuple(names), is_mirrorable))
        payloads.append(encode_webp(image))
    return pictures, payloads


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_work_argument(parser)
    parser.add_argument("--folder", type=Path, help="your own pictures instead of the emoji")
    parser.add_argument("--names", type=Path, help="JSON of names, needed with --folder")
    options = parser.parse_args()
    if (options.folder is None) != (options.names is None):
        parser.error("--folder and --names go together")
    if options.folder:
        pictures, payloads = folder_pictures(options.folder, options.names)
    else:
        pictures, payloads = emoji_pictures(options.work / "npm")
    save_pictures(options.work / "pictures.zip", mark_only_styles(pictures), payloads)
    names = {name for picture in pictures for name in picture.names}
    codes = {picture.code for picture in pictures}
    num_bytes = sum(map(len, payloads))
    print(f"{len(pictures)} pictures of {len(codes)} subjects with {len(names)} names, "
          f"{num_bytes / 2**20:.1f} MiB in {options.work / 'pictures.zip'}")  # fmt: skip


if __name__ == "__main__":
    main()
