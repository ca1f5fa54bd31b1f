"""Measure load time, warm time a picture and repeatability on this CPU.

Prints one JSON object and writes ``evaluation/timing-SCHEME.json``. On a shared machine repeat it
and take the smallest median. Does not know quality.
Invariant: the first call is never counted.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import platform
import statistics
import time

import torch

from models.emoji.training.painting import SCHEMES, Settings, load_pipeline, paint
from models.emoji.training.workspace import add_model_argument

PROMPT = "a red apple, 3d style, blue background"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_model_argument(parser)
    parser.add_argument("--scheme", choices=SCHEMES, default="bfloat16")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--steps", type=int, default=Settings.num_steps)
    parser.add_argument("--guidance", type=float, default=Settings.guidance)
    parser.add_argument("--threads", type=int, default=2, help="CPU threads (%(default)s)")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    started = time.perf_counter()
    pipeline = load_pipeline(options.model, options.scheme)
    load_s = time.perf_counter() - started
    settings = Settings(num_steps=options.steps, guidance=options.guidance)
    seconds, hashes = [], set()
    for _ in range(options.repeats + 1):
        started = time.perf_counter()
        image = paint(pipeline, [PROMPT], [0], settings)[0]
        seconds.append(time.perf_counter() - started)
        hashes.add(hashlib.sha256(image.tobytes()).hexdigest())
    report = {
        "scheme": options.scheme, "steps": options.steps, "guidance": options.guidance,
        "threads": options.threads, "load_s": round(load_s, 3), "first_s": round(seconds[0], 3),
        "warm_median_s": round(statistics.median(seconds[1:]), 3),
        "warm_min_s": round(min(seconds[1:]), 3),
        "is_repeatable": len(hashes) == 1, "torch": torch.__version__,
        "machine": platform.processor() or platform.machine(),
    }  # fmt: skip
    folder = options.model / "evaluation"
    folder.mkdir(exist_ok=True)
    (folder / f"timing-{options.scheme}.json").write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(report))


if __name__ == "__main__":
    main()
