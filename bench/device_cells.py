"""What the worker's engine does on a real GPU at full size with random weights, through its real assembly line.

    python -m bench.device_cells --folder /tmp/models              all: about nine minutes on an idle H200
    python -m bench.device_cells --groups flux --save bench/results/device_cells.json

flux     FLUX.1 dev written to disk: stock diffusers beside bf16, fp8, int8, float8 storage, streamed, offloaded
stack    the same model through gateway, planner, worker and Redis, beside the engine in this process
emoji    the bundled model in every scheme, against the dense one
others   Z-Image and Qwen-Image in bf16 and fp8
tokens   prompts of 1, 13, 16 and 17 tokens, and of zeros

Per case: what engaged, load time, step time, peak memory, graphs that were compiled while pictures were made. Every
picture is finite, or the case fails. A step's time is what a long picture takes beyond a short one, over their steps.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from bench.device import emoji, few_tokens, flux_cells, flux_on_disk, stack
from bench.device.engine import RANDOM, EngineHere, Figures, time_pictures
from bench.device.measuring import settle
from bench.device.report import cells_tables
from bench.machine import describe_machine
from darkroom.knowledge import load_catalogue
from darkroom.v1 import device_pb2

GROUPS = ("flux", "stack", "emoji", "tokens", "others")
OTHERS = {"z-image-turbo": (2, 9), "qwen-image": (2, 8)}
SCHEMES = {"bf16": device_pb2.SCHEME_NONE, "fp8": device_pb2.SCHEME_FP8}
Case = tuple[str, float, Callable[[], Figures]]


class Cells:
    """Everything that is measured, in one process.

    Args:
        device: "cuda:0".
        folder: for the model on disk.
        side: of pictures, in pixels.
    """

    def __init__(self, device: str, folder: Path, side: int) -> None:
        self._catalogue, self._name, self._side = load_catalogue(), device, side
        self._device, self._folder = torch.device(device), folder / "flux.1-dev-random"
        folder.mkdir(parents=True, exist_ok=True)
        self._engine = EngineHere(self._catalogue, device, folder)

    def cases(self, group: str) -> Iterator[Case]:
        """Yields name, the seconds that a case takes at most, and what measures it."""
        yield from getattr(self, f"_{group}")()

    def _flux(self) -> Iterator[Case]:
        if not self._folder.exists():
            yield "writing the model", 90, self._write
        flux = flux_cells.FluxCells(self._engine, self._folder, self._device, self._side)
        for name, most_s, measure in flux_cells.cells(flux):
            yield f"flux.1-dev, {name}", most_s, measure

    def _write(self) -> Figures:
        began = time.perf_counter()
        flux_on_disk.write(self._catalogue, self._folder, self._device)
        settle()
        num_bytes = sum(file.stat().st_size for file in self._folder.rglob("*.safetensors"))
        return {"bytes": num_bytes, "seconds": round(time.perf_counter() - began, 1)}

    def _stack(self) -> Iterator[Case]:
        request = {"width": self._side, "height": self._side, "steps": 28, "guidance": 3.5}
        yield "flux.1-dev through the stack", 130, lambda: stack.measure(self._engine, self._name, 5, **request)

    def _emoji(self) -> Iterator[Case]:
        made = emoji.Emoji(self._catalogue, self._engine)
        for case in emoji.CASES:
            yield f"emoji, {case}", 45, lambda case=case: made.measure(case)

    def _others(self) -> Iterator[Case]:
        for model, (few, many) in OTHERS.items():
            for word, scheme in SCHEMES.items():
                yield (
                    f"{model}, {word}, default",
                    90,
                    lambda model=model, scheme=scheme, few=few, many=many: self._other(model, scheme, few, many),
                )

    def _other(self, model: str, scheme: device_pb2.Scheme.ValueType, few: int, many: int) -> Figures:
        figures = self._engine.load(self._engine.plan(model, scheme=scheme, source=RANDOM))
        return figures | time_pictures(lambda steps: self._paint(model, steps), few, many, repeats=1)

    def _paint(self, model: str, steps: int) -> Any:
        # As distilled models are called, so that a step is one evaluation of the denoiser.
        guidance = min(1.0, self._catalogue.message(model).defaults.guidance)
        return self._engine.paint(
            model=model, prompt="a lighthouse", width=self._side, height=self._side, steps=steps, guidance=guidance
        )

    def _tokens(self) -> Iterator[Case]:
        yield "few tokens and empty rows", 40, lambda: dict(few_tokens.rows(self._catalogue, self._device))

    def close(self) -> None:
        """Gives all back."""
        self._engine.unload()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--groups", nargs="*", default=list(GROUPS), choices=GROUPS, metavar="GROUP")
    parser.add_argument("--folder", type=Path, default=Path("/tmp/darkroom-models"), help="has 30 GB of room")
    parser.add_argument("--device", default="cuda:0", help="of torch")
    parser.add_argument("--side", type=int, default=1024, help="of pictures, in pixels")
    parser.add_argument("--only", default="", metavar="WORDS", help="cases whose names hold these")
    parser.add_argument("--keep", action="store_true", help="keep the other cases of the saved file")
    parser.add_argument("--seconds", type=float, default=900, help="start no case that would end after this long")
    parser.add_argument("--save", type=Path, help="write JSON here after each case, and tables beside it")
    options = parser.parse_args()
    began = time.perf_counter()
    figures: Figures = {"machine": describe_machine(), "cases": {}}
    if options.keep and options.save and options.save.exists():
        figures["cases"] = json.loads(options.save.read_text())["cases"]
    cells = Cells(options.device, options.folder, options.side)
    for group in options.groups:
        for name, most_s, measure in cells.cases(group):
            if options.only and options.only not in name:
                continue
            if time.perf_counter() - began + most_s > options.seconds:
                print(f"no time for {name}", flush=True)
                continue
            figures["cases"][name] = _measured(measure)
            print(f"{time.perf_counter() - began:6.0f} s  {name}: {figures['cases'][name]}", flush=True)
            if options.save:
                options.save.write_text(json.dumps(figures, indent=2) + "\n")
                options.save.with_suffix(".md").write_text(cells_tables(figures))
    cells.close()
    print(cells_tables(figures))
    return 0


def _measured(measure: Callable[[], Figures]) -> Figures:
    try:
        return measure()
    except Exception as failure:  # one case that can't run must not lose the others
        return {"failed": f"{type(failure).__name__}: {failure}"[:600]}


if __name__ == "__main__":
    sys.exit(main())
