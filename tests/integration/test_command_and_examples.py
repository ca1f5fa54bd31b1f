"""The command and the examples, as a newcomer runs them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from PIL import Image

from tests.integration.conftest import ROOT, RunningStack

RUN_S = 100.0


def run(stack: RunningStack, folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "DARKROOM_ADDRESS": stack.address, "PYTHONPATH": str(ROOT), "COLUMNS": "120"}
    return subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=RUN_S,
        check=False,
    )


def size_of(path: Path) -> tuple[int, int]:
    with Image.open(path) as image:
        return image.size


def darkroom(stack: RunningStack, folder: Path, *arguments: str) -> str:
    ran = run(stack, folder, "-m", "darkroom.cli", *arguments)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


@pytest.mark.parametrize(
    ("example", "pictures"),
    [
        ("generate.py", ["apple.png"]),
        ("generate_async.py", ["cat-1.png", "cat-2.png", "cat-3.png", "cat-4.png"]),
        ("watch_job.py", ["house.png"]),
    ],
)
def test_an_example_runs_as_it_is(stack: RunningStack, tmp_path: Path, example: str, pictures: list[str]) -> None:
    ran = run(stack, tmp_path, str(ROOT / "examples" / example))
    assert ran.returncode == 0, ran.stderr
    assert sorted(os.listdir(tmp_path)) == pictures
    for picture in pictures:
        assert size_of(tmp_path / picture) == (128, 128)


def test_from_connect_to_picture_takes_at_most_ten_lines() -> None:
    lines = (ROOT / "examples/generate.py").read_text().splitlines()
    assert len(lines) <= 10


def test_the_command_makes_shows_and_saves_pictures(stack: RunningStack, tmp_path: Path) -> None:
    printed = darkroom(stack, tmp_path, "generate", "a red apple", "--seed", "7", "--output", "apple.png")
    assert printed.splitlines()[-1] == "saved apple.png"
    assert "seed 7" in printed
    job = json.loads(darkroom(stack, tmp_path, "jobs", "list", "--limit", "1", "--json"))[0]
    assert job["state"] == "JOB_STATE_SUCCEEDED"
    darkroom(stack, tmp_path, "jobs", "save", job["id"], "--output", "again.png")
    assert (tmp_path / "again.png").read_bytes() == (tmp_path / "apple.png").read_bytes()
    assert "succeeded" in darkroom(stack, tmp_path, "jobs", "watch", job["id"])


def test_random_weights_measure_the_device_and_never_paint_for_those_who_did_not_ask(
    stack: RunningStack, tmp_path: Path
) -> None:
    apple = ("generate", "a red apple", "--seed", "7", "--steps", "2", "--output")
    darkroom(stack, tmp_path, *apple, "before.png")
    darkroom(stack, tmp_path, *apple, "noise.png", "--source", "random")
    darkroom(stack, tmp_path, *apple, "after.png")
    before, noise, after = [(tmp_path / f"{name}.png").read_bytes() for name in ("before", "noise", "after")]
    assert before == after != noise


def test_the_command_tells_models_plan_and_status(stack: RunningStack, tmp_path: Path) -> None:
    assert "emoji" in darkroom(stack, tmp_path, "models")
    plan = darkroom(stack, tmp_path, "plan", "emoji")
    for word in ("emoji fits", "FluxPipeline", "transformer", "required", "Why"):
        assert word in plan
    assert json.loads(darkroom(stack, tmp_path, "plan", "emoji", "--json"))["plan"]["model"] == "emoji"
    status = darkroom(stack, tmp_path, "status")
    assert "ready" in status
    assert "emoji" in status


def test_a_model_that_does_not_fit_says_what_each_candidate_needs(stack: RunningStack, tmp_path: Path) -> None:
    ran = run(stack, tmp_path, "-m", "darkroom.cli", "plan", "flux.2-dev")
    assert ran.returncode == 1
    assert "flux.2-dev does not fit" in ran.stdout
    assert "Candidates" in ran.stdout


def test_a_plan_for_a_described_device_needs_no_gateway(tmp_path: Path) -> None:
    command = (sys.executable, "-m", "darkroom.cli", "plan", "flux.1-dev", "--device", "rtx-3090", "--taken", "5")
    environment = {**os.environ, "DARKROOM_ADDRESS": "127.0.0.1:1", "PYTHONPATH": str(ROOT)}
    ran = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert "flux.1-dev fits on NVIDIA GeForce RTX 3090" in ran.stdout
    assert "held by others 5.0 GB" in " ".join(ran.stdout.split())


def test_the_demo_runs_beside_another_stack_and_saves_a_picture(stack: RunningStack, tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path), "DARKROOM_ADDRESS": stack.address}
    ran = subprocess.run(
        [sys.executable, "-m", "darkroom.cli", "demo", "a red apple", "--seed", "7", "--output", f"{tmp_path}/out/"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=RUN_S,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    path = tmp_path / "out/a-red-apple-7.png"
    assert ran.stdout.splitlines() == [f"saved {path}"]
    assert size_of(path) == (128, 128)
    assert "denoising" in ran.stderr
    assert not [name for name in os.listdir(tmp_path) if name.startswith("darkroom-demo-")]


@pytest.mark.parametrize("moment", ["planner", "reading the prompt"], ids=["while it starts", "while it paints"])
def test_ctrl_c_leaves_no_process_and_no_file(tmp_path: Path, moment: str) -> None:
    mark = f"DARKROOM_MARK_{os.getpid()}_{time.monotonic_ns()}"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path), mark: "1"}
    process = subprocess.Popen(
        [sys.executable, "-m", "darkroom.cli", "demo", "a red apple", "--output", f"{tmp_path}/out/"],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    seen = ""
    for line in process.stderr:
        seen += line
        if moment in line:
            break
    process.send_signal(signal.SIGINT)
    out, rest = process.communicate(timeout=RUN_S)
    assert process.returncode == 130, seen + rest
    assert out == ""
    assert "Traceback" not in seen + rest
    assert os.listdir(tmp_path / "out") == []
    assert not [name for name in os.listdir(tmp_path) if name.startswith("darkroom-demo-")]
    assert processes_with(mark) == []


def processes_with(mark: str) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if mark.encode() in (entry / "environ").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                continue
    return found
