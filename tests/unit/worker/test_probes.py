"""Probes: remembered by device and versions, honest about crashes, and silent where nothing was learnt."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch

from darkroom.modeling.quantise import FP8, INT8, STORAGE
from darkroom.v1 import device_pb2
from services.worker.engine.probing.probes import Probes

VERSIONS = device_pb2.SoftwareVersions(torch="2.13.0", diffusers="0.42.1", torchao="0.18.0")
# A stand-in for the child: writes down its arguments, answers as told, and ends itself at a scheme of its own.
CHILD = """
import json, os, sys
with open({calls!r}, "a") as calls:
    calls.write(" ".join(sys.argv[2:]) + "\\n")
for number in sys.argv[2:]:
    print(json.dumps({{"begins": int(number)}}), flush=True)
    if number == {crash!r}:
        os.abort()
    answer = None if number == {silent!r} else {{"works": True, "reason": ""}}
    print(json.dumps({{"ended": int(number), "answer": answer}}), flush=True)
"""


class Bench:
    """Probes whose child is a script."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.calls = folder / "calls"

    def ask(self, device: str = "cpu", crash: int = -1, silent: int = -1) -> device_pb2.Device:
        script = self.folder / "child.py"
        script.write_text(CHILD.format(calls=str(self.calls), crash=str(crash), silent=str(silent)))
        reading = device_pb2.Device()
        probes = Probes(torch.device(device), "a device", VERSIONS, self.folder, (sys.executable, str(script)))
        probes.describe(reading)
        return reading

    @property
    def asked(self) -> list[str]:
        return self.calls.read_text().splitlines()


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def works(reading: device_pb2.Device) -> dict[int, bool]:
    return {probe.scheme: probe.works for probe in reading.probes}


def test_what_was_tried_is_not_tried_again_on_the_same_device(bench: Bench) -> None:
    first = bench.ask()
    assert works(first) == {FP8: True, INT8: True, STORAGE: True}
    assert not first.HasField("can_compile")
    assert bench.ask() == first
    assert len(bench.asked) == 1
    assert bench.ask("cuda:0").can_compile
    assert bench.asked[1:] == [f"0 {FP8} {INT8} {STORAGE}"]


def test_a_scheme_that_ends_the_child_has_failed_and_the_others_are_tried_in_another(bench: Bench) -> None:
    reading = bench.ask(crash=INT8)
    assert works(reading) == {FP8: True, INT8: False, STORAGE: True}
    assert "ended with -6" in reading.probes[1].reason
    assert bench.asked == [f"{FP8} {INT8} {STORAGE}", f"{STORAGE}"]


def test_running_out_of_memory_is_no_answer_and_is_tried_at_the_next_start(bench: Bench) -> None:
    assert works(bench.ask(silent=FP8)) == {INT8: True, STORAGE: True}
    assert works(bench.ask()) == {FP8: True, INT8: True, STORAGE: True}
    assert bench.asked == [f"{FP8} {INT8} {STORAGE}", f"{FP8}"]


def test_a_child_that_does_not_start_leaves_everything_unknown(bench: Bench) -> None:
    reading = device_pb2.Device()
    Probes(
        torch.device("cpu"), "a device", VERSIONS, bench.folder, (sys.executable, "-c", "raise SystemExit(3)")
    ).describe(reading)
    assert not reading.probes


def test_a_broken_memory_is_made_anew(bench: Bench) -> None:
    (bench.folder / "probes.json").write_text("{broken")
    assert len(works(bench.ask())) == 3
    assert len(json.loads((bench.folder / "probes.json").read_text())) == 1
