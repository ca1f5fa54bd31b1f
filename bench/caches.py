"""What kept code and kept embeddings save: the bundled model compiled twice, each time in a new process, and one
prompt encoded twice.

    python -m bench.caches                                      on this processor
    python -m bench.caches --device cuda:0                      on a GPU
    python -m bench.caches --save bench/results/caches.json     figures

Both processes share one folder for compiled code, which is empty before the first. Compiling is the speed stage alone:
blocks and decoder made and one step painted, with everything imported and loaded before.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.machine import describe_machine

ROUNDS = 9
PROMPT = "a red apple, 3d style, blue background"


def measure_once(device_word: str, folder: Path) -> dict[str, Any]:
    """Loads the model, compiles it with its code kept in `folder`, and encodes a prompt."""
    import torch

    from darkroom.knowledge import load_catalogue
    from darkroom.v1 import plan_pb2, planner_service_pb2
    from services.planner.planning import plan as make_plan
    from services.worker.config import WorkerSettings
    from services.worker.engine.assembly.line import assemble, dismantle
    from services.worker.engine.assembly.speed import SpeedStage
    from services.worker.engine.device import choose_device, read_device
    from services.worker.engine.reporting import LoadReporter

    device = choose_device(device_word)
    request = planner_service_pb2.PlanRequest(model="emoji", device=read_device(device, 0))
    plan, report = make_plan(request, load_catalogue()).plan, LoadReporter(lambda event: None, lambda: False)
    plan.speed_mode = plan_pb2.SPEED_MODE_OFF
    plan.ClearField("compile")
    made = assemble(plan, WorkerSettings(worker_cache_dir=folder), device, report)
    encodings = []
    with torch.inference_mode():
        made.pipeline.encode_prompt(prompt="another", prompt_2=None, max_sequence_length=32)
        for _ in range(2 * ROUNDS):
            began = time.perf_counter()
            made.pipeline.encode_prompt(prompt=PROMPT, prompt_2=None, max_sequence_length=32)
            encodings.append(time.perf_counter() - began)
            if len(encodings) < ROUNDS and made.prompt_cache is not None:
                made.prompt_cache.clear()
    made.plan.speed_mode = plan_pb2.SPEED_MODE_MAX
    made.plan.compile.CopyFrom(plan_pb2.CompilePlan(fullgraph=True, vae=True))
    began = time.perf_counter()
    SpeedStage().apply(made, report)
    compile_s = time.perf_counter() - began
    knobs = {knob.knob: knob.engaged for knob in made.engagements}
    dismantle(made)
    return {
        "compile_s": round(compile_s, 2),
        "found": knobs["compile_cache"],
        "encode_ms": round(1000 * statistics.median(encodings[:ROUNDS]), 3),
        "known_ms": round(1000 * statistics.median(encodings[ROUNDS:]), 3),
    }


def child(device: str, folder: Path) -> dict[str, Any]:
    """Measures in a process of its own."""
    command = [sys.executable, "-m", "bench.caches", "--device", device, "--folder", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def main() -> None:
    """Prints a table, or what one process measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--save", type=Path)
    parser.add_argument("--folder", type=Path, help="of compiled code: measure once, in this process")
    arguments = parser.parse_args()
    if arguments.folder is not None:
        print(json.dumps(measure_once(arguments.device, arguments.folder)))
        return
    with tempfile.TemporaryDirectory() as folder:
        cold, warm = (child(arguments.device, Path(folder)) for _ in range(2))
    print(f"compile   cold {cold['compile_s']:8.2f} s ({cold['found']})")
    print(f"          kept {warm['compile_s']:8.2f} s ({warm['found']})")
    print(f"encode   fresh {warm['encode_ms']:8.3f} ms")
    print(f"         known {warm['known_ms']:8.3f} ms")
    if arguments.save is not None:
        result = {"machine": describe_machine(), "cold": cold, "kept": warm}
        arguments.save.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
