"""Stage 9: does the model paint what it is asked? 200 prompts through the stock pipeline.

Prompts are "a NAME, STYLE style, COLOUR background": the name drawn uniformly from all trained
names, the style from those trained for it, the colour from all 16. Measured:

  nearest, among_five   the named subject is the nearest training picture, or one of the nearest
                        five, of all pictures in both styles (RGB distance at 64 px, training
                        pictures on the asked background)
  style                 the nearest picture has the asked style
  background            the border is nearest to the asked colour
  reference_*           the same by the small reference set of `models.emoji.retrieval`

These are trained names: the figures say how well the model recalls, not how it invents.
Invariant: the same seed gives the same prompts and the same noise under every scheme.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from models.emoji.retrieval import Reference, load_reference
from models.emoji.training.captions import Wish, prompt
from models.emoji.training.compose import COLOUR_NAMES, LAYOUTS, NORMAL, Sprites, compose
from models.emoji.training.latents import plain_scenes
from models.emoji.training.painting import SCHEMES, Settings, load_pipeline, paint
from models.emoji.training.pictures import Picture, load_index, load_pixels
from models.emoji.training.progress import track
from models.emoji.training.workspace import add_model_argument, add_work_argument

MEASURE_PX = 64


@dataclass(frozen=True)
class Outcome:
    """What one painted picture turned out to be."""

    prompt: str
    nearest_name: str
    nearest: bool
    among_five: bool
    style: bool
    background: bool
    reference_nearest: bool
    reference_among_five: bool
    reference_style: bool
    reference_distance: float
    """Distance to the nearest picture of the reference set."""


def draw_wishes(reference: Reference, count: int, seed: int) -> list[Wish]:
    """Random wishes over all trained names."""
    rng = np.random.default_rng(seed)
    names = reference.all_names()
    wishes = []
    for name in rng.choice(names, count, replace=count > len(names)):
        style = str(rng.choice(reference.styles_of(str(name))))
        wishes.append(Wish(str(name), style, str(rng.choice(COLOUR_NAMES))))
    return wishes


def full_nearest(images: list[Image.Image], wishes: list[Wish], work: Path, k: int = 5) -> list[list[int]]:
    """Rows of the `k` nearest training pictures at MEASURE_PX, for every painted picture."""
    pixels = load_pixels(work / "pictures.zip", num_threads=2)
    sprites = Sprites(pixels, "cpu", MEASURE_PX, (LAYOUTS[NORMAL],))
    painted = torch.stack([to_pixels(image) for image in images])
    found: list[list[int]] = [[] for _ in images]
    for colour in track(sorted({wish.background for wish in wishes}), "looking up"):
        asked = [i for i, wish in enumerate(wishes) if wish.background == colour]
        scenes = plain_scenes(len(pixels), colour)
        chunks = np.array_split(np.arange(len(pixels)), max(1, len(pixels) // 400))
        distances = [
            torch.cdist(painted[asked].flatten(1), compose(sprites, scenes, rows).flatten(1)) for rows in chunks
        ]
        nearest = torch.cat(distances, dim=1).topk(k, largest=False).indices
        for i, rows in zip(asked, nearest.tolist(), strict=True):
            found[i] = rows
    return found


def to_pixels(image: Image.Image) -> torch.Tensor:
    """A picture as float (3, MEASURE_PX, MEASURE_PX) in [-1, 1]."""
    small = image.convert("RGB").resize((MEASURE_PX, MEASURE_PX), Image.Resampling.BOX)
    array = np.asarray(small, dtype=np.float32)
    return torch.from_numpy(array).permute(2, 0, 1) / 127.5 - 1


def judge(images: list[Image.Image], wishes: list[Wish], work: Path, reference: Reference) -> list[Outcome]:
    """Compare every picture with its wish."""
    pictures: list[Picture] = load_index(work / "pictures.zip")
    outcomes = []
    for image, wish, rows in zip(images, wishes, full_nearest(images, wishes, work), strict=True):
        found = [pictures[row] for row in rows]
        matches = reference.nearest(image, 5)
        outcomes.append(
            Outcome(
                prompt(wish),
                found[0].names[0],
                wish.name in found[0].names,
                any(wish.name in picture.names for picture in found),
                found[0].style == wish.style,
                reference.background(image) == wish.background,
                wish.name in matches[0].names,
                any(wish.name in match.names for match in matches),
                matches[0].style == wish.style,
                round(matches[0].distance, 4),
            )
        )
    return outcomes


def summarize(outcomes: list[Outcome]) -> dict[str, float]:
    """Shares of the yes-or-no columns, and the 95 % quantile of the reference distance."""
    columns = [k for k, v in asdict(outcomes[0]).items() if isinstance(v, bool)]
    shares = {c: round(float(np.mean([getattr(o, c) for o in outcomes])), 4) for c in columns}
    distances = [outcome.reference_distance for outcome in outcomes]
    return {**shares, "reference_distance_q95": round(float(np.quantile(distances, 0.95)), 4)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_work_argument(parser)
    add_model_argument(parser)
    parser.add_argument("--schemes", nargs="+", choices=SCHEMES, default=["bfloat16"])
    parser.add_argument("--num-prompts", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0, help="of the prompts (%(default)s)")
    parser.add_argument("--steps", type=int, default=Settings.num_steps)
    parser.add_argument("--guidance", type=float, default=Settings.guidance)
    parser.add_argument("--threads", type=int, default=2, help="CPU threads (%(default)s)")
    parser.add_argument("--output", type=Path, help="folder (default: evaluation in the model)")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    reference = load_reference(options.model / "reference")
    wishes = draw_wishes(reference, options.num_prompts, options.seed)
    settings = Settings(num_steps=options.steps, guidance=options.guidance)
    painted: list[Image.Image] = []
    for scheme in options.schemes:
        pipeline = load_pipeline(options.model, scheme)
        seeds = [1000 + i for i in range(len(wishes))]
        painted += paint(pipeline, [prompt(wish) for wish in wishes], seeds, settings)
    outcomes = judge(painted, wishes * len(options.schemes), options.work, reference)
    for i, scheme in enumerate(options.schemes):
        own = outcomes[i * len(wishes) : (i + 1) * len(wishes)]
        folder = options.output or options.model / "evaluation"
        write_report(folder, scheme, own, settings, options.seed)


def write_report(folder: Path, scheme: str, outcomes: list[Outcome], settings: Settings, seed: int) -> None:
    """Write ``SCHEME.json`` with the figures and every miss, and print the figures."""
    summary = summarize(outcomes)
    report = {
        "scheme": scheme, "settings": asdict(settings), "seed": seed,
        "num_prompts": len(outcomes), "torch": torch.__version__, "summary": summary,
        "misses": [asdict(o) for o in outcomes if not (o.nearest and o.style and o.background)],
    }  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{scheme}.json").write_text(json.dumps(report, indent=1) + "\n")
    print(scheme, summary, flush=True)


if __name__ == "__main__":
    main()
