"""`darkroom generate`: what it prints, what it writes, and what it refuses."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from darkroom.cli.png import read_pixels
from darkroom.client import errors
from darkroom.client.fakes import FakeGateway
from darkroom.v1 import checkpoint_pb2, device_pb2, generation_pb2, job_pb2, plan_pb2
from tests.unit.cli.conftest import Command

ROOT = Path(__file__).resolve().parents[3]


def test_it_saves_a_picture_named_by_prompt_and_seed_and_says_so_last(darkroom: Command, tmp_path: Path) -> None:
    ran = darkroom("generate", "A red apple!", "--seed", "7")
    assert ran.exit_code == 0
    assert ran.out.splitlines() == ["128×128 png, seed 7", "saved a-red-apple-7.png"]
    pixels = read_pixels((tmp_path / "a-red-apple-7.png").read_bytes())
    assert pixels is not None
    assert (len(pixels), len(pixels[0])) == (128, 128)


def test_without_a_terminal_each_stage_is_a_line_on_stderr(darkroom: Command, gateway: FakeGateway) -> None:
    gateway.step_s = 0.01
    ran = darkroom("generate", "a house", "--steps", "12")
    stages = [line.split(":")[0] for line in ran.err.splitlines()]
    # Whether the first stage is still seen is a race that the job may win.
    assert stages[-2:] == ["denoising 12 steps", "decoding"]
    assert stages[:-2] in ([], ["reading the prompt"], ["queued", "reading the prompt"])


def test_a_second_picture_of_the_same_name_gets_a_number(darkroom: Command, tmp_path: Path) -> None:
    for _ in range(3):
        assert darkroom("generate", "a house", "--seed", "1", "-o", "new/folder/").exit_code == 0
    assert sorted(os.listdir(tmp_path / "new/folder")) == ["a-house-1-2.png", "a-house-1-3.png", "a-house-1.png"]


def test_an_existing_file_is_refused_before_anything_is_made(
    darkroom: Command, gateway: FakeGateway, tmp_path: Path
) -> None:
    (tmp_path / "a.png").write_text("mine")
    ran = darkroom("generate", "a house", "-o", "a.png")
    assert ran.exit_code == 1
    assert ran.err.splitlines() == [
        "error: a.png exists",
        "  next: Choose another name, or add --overwrite.",
    ]
    assert (tmp_path / "a.png").read_text() == "mine"
    assert not gateway.jobs
    assert darkroom("generate", "a house", "-o", "a.png", "--overwrite").exit_code == 0
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


def test_several_pictures_have_seeds_that_follow_each_other(darkroom: Command, tmp_path: Path) -> None:
    ran = darkroom("generate", "a cat", "--count", "3", "--seed", "5", "--output", "cat.png")
    assert ran.exit_code == 0
    assert [line for line in ran.out.splitlines() if line.startswith("saved")] == [
        "saved cat-5.png",
        "saved cat-6.png",
        "saved cat-7.png",
    ]


def test_every_option_reaches_the_gateway(darkroom: Command, gateway: FakeGateway) -> None:
    options = "--model text-to-emoji --size 64x96 --steps 3 --guidance 2.5 --seed 0 --negative blurry --format png"
    assert darkroom("generate", "a cat", "--scheme", "int8", *options.split()).exit_code == 0
    (job,) = gateway.jobs.values()
    assert job.record.request == generation_pb2.GenerationRequest(
        model="emoji",
        prompt="a cat",
        negative_prompt="blurry",
        width=64,
        height=96,
        steps=3,
        guidance=2.5,
        seed=0,
        format=generation_pb2.OUTPUT_FORMAT_PNG,
        preferences=plan_pb2.PlanPreferences(scheme=device_pb2.SCHEME_INT8),
    )


def test_random_weights_are_asked_for_by_name_and_nothing_else_is_a_source(
    darkroom: Command, gateway: FakeGateway
) -> None:
    assert darkroom("generate", "a cat", "--source", "random").exit_code == 0
    (job,) = gateway.jobs.values()
    assert job.record.request.preferences.source.kind == checkpoint_pb2.CHECKPOINT_KIND_RANDOM
    ran = darkroom("generate", "a cat", "--source", "elsewhere")
    assert ran.exit_code == 2
    assert "'elsewhere' is none of random" in ran.err


def test_one_failure_of_several_is_told_and_the_rest_is_saved(
    darkroom: Command, gateway: FakeGateway, tmp_path: Path
) -> None:
    gateway.fail_next(errors.BrokenOutputError("the picture is black"))
    ran = darkroom("generate", "a cat", "--count", "3")
    assert ran.exit_code == 1
    assert "error: the picture is black" in ran.err
    assert len(os.listdir(tmp_path)) == 2


def test_what_engaged_otherwise_than_asked_is_said(darkroom: Command, gateway: FakeGateway) -> None:
    darkroom("generate", "a cat", "--seed", "1", "--detach")
    (job,) = gateway.jobs.values()
    while job.record.state != job_pb2.JOB_STATE_SUCCEEDED:
        time.sleep(0.01)
    job.record.output.engagements.add(knob="guidance", requested="9", engaged="3", reason="the model takes at most 3")
    ran = darkroom("jobs", "save", job.record.id)
    assert "guidance: 3 (asked: 9): the model takes at most 3" in ran.out


def test_a_detached_job_prints_its_id_alone(darkroom: Command, gateway: FakeGateway, tmp_path: Path) -> None:
    ran = darkroom("generate", "a cat", "--detach", "--count", "2")
    assert ran.out.split() == list(gateway.jobs)
    assert not os.listdir(tmp_path)


def test_standard_output_takes_the_bytes_alone(gateway: FakeGateway) -> None:
    command = [sys.executable, "-m", "darkroom.cli", "generate", "a cat", "-o", "-", "-a", gateway.address]
    ran = subprocess.run(command, capture_output=True, cwd=ROOT, check=True)
    assert read_pixels(ran.stdout) is not None


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ("--width 17 --steps 0", "--width: 17 is not a multiple of 16 from 64 to 256 pixels; --steps: 0 is not"),
        ("--size 12y", "'12y' is no size; write 128x128"),
        ("--size 64x64 --width 64", "give --size or --width and --height, not both"),
        ("--count 0", "--count"),
        ("--seed -1", "--seed"),
        ("--format gif", "'gif' is none of png, jpeg, webp"),
        ("--output a.gif", "a.gif is neither a folder nor a file that ends with .png"),
        ("--output a.png --format jpeg", "a.png and --format jpeg disagree"),
        ("--output - --count 2", "standard output takes one picture"),
        ("--address nowhere", "'nowhere' has no port"),
        ("--wrong", "--wrong"),
    ],
)
def test_a_wrong_command_line_is_two_lines_and_status_2(darkroom: Command, arguments: str, complaint: str) -> None:
    ran = darkroom("generate", "a cat", *arguments.split())
    assert ran.exit_code == 2
    first, second = ran.err.splitlines()
    assert first.startswith("error: ")
    assert complaint in first
    assert second.startswith("  next: ")
    assert ran.out == ""


def test_a_failed_job_is_two_lines_and_status_1(darkroom: Command, gateway: FakeGateway) -> None:
    gateway.fail_next(errors.OutOfMemoryError("2 GiB are missing"))
    ran = darkroom("generate", "a cat")
    assert ran.exit_code == 1
    assert "error: 2 GiB are missing\n  next: Ask for a smaller picture" in ran.err


def test_a_gateway_that_is_not_there_says_how_to_start_one(darkroom: Command) -> None:
    ran = darkroom("generate", "a cat", "--address", "127.0.0.1:1")
    assert ran.exit_code == 1
    assert ran.err.splitlines() == [
        "error: no gateway answers at 127.0.0.1:1: Connection refused",
        "  next: Start one with `darkroom up`, or name one with --address or DARKROOM_ADDRESS.",
    ]


def test_a_folder_that_can_not_be_made_is_refused(darkroom: Command, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    ran = darkroom("generate", "a cat", "--output", "file/a.png")
    assert ran.exit_code == 1
    assert "error: file: " in ran.err


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_cancels_the_jobs_and_leaves_no_file(
    gateway: FakeGateway, tmp_path: Path, number: signal.Signals, status: int
) -> None:
    gateway.step_s = 0.05
    process = subprocess.Popen(
        [sys.executable, "-m", "darkroom.cli", "generate", "a cat", "--count", "2", "-a", gateway.address],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
    )
    until = time.monotonic() + 20
    while len(gateway.jobs) < 2 and time.monotonic() < until:
        time.sleep(0.02)
    time.sleep(0.2)
    process.send_signal(number)
    _, err = process.communicate(timeout=20)
    assert process.returncode == status
    assert f"cancelled {', '.join(gateway.jobs)}" in err
    assert "Traceback" not in err
    assert {job.record.state for job in gateway.jobs.values()} == {job_pb2.JOB_STATE_CANCELLED}
    assert os.listdir(tmp_path) == []


def test_a_deadline_ends_what_is_not_done_by_then(darkroom: Command, gateway: FakeGateway) -> None:
    gateway.step_s = 0.05
    ran = darkroom("generate", "a cat", "--steps", "40", "--deadline", "0.2")
    assert ran.exit_code == 1
    assert ran.err.splitlines()[-2:] == [
        "error: the job's deadline passed before its end",
        "  next: Allow more time, or see what keeps the workers busy: `darkroom status`.",
    ]
    (job,) = gateway.jobs.values()
    assert "deadline" in darkroom("jobs", "show", job.record.id).out


def test_priority_and_tenant_reach_the_gateway(
    darkroom: Command, gateway: FakeGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert darkroom("generate", "a cat", "--priority", "high", "--tenant", "kiosk").exit_code == 0
    monkeypatch.setenv("DARKROOM_TENANT", "from-the-environment")
    assert darkroom("generate", "a cat").exit_code == 0
    first, second = gateway.jobs.values()
    assert (first.record.terms.priority, first.record.tenant) == (job_pb2.JOB_PRIORITY_HIGH, "kiosk")
    assert (second.record.terms.priority, second.record.tenant) == (0, "from-the-environment")
    shown = darkroom("jobs", "show", first.record.id).out
    assert "high" in shown
    assert "kiosk" in shown
    wrong = darkroom("generate", "a cat", "--priority", "urgent")
    assert wrong.exit_code == 2
    assert "'urgent' is none of low, normal, high" in wrong.err
