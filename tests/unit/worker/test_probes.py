"""Probes: remembered by device and versions, honest about crashes, and silent where nothing was learnt."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from darkroom.modeling.block_scaled import NVFP4
from darkroom.modeling.quantise import STORAGE
from darkroom.modeling.row_scaled import FP8, INT8
from darkroom.v1 import device_pb2, plan_pb2
from services.worker.engine.probing.kernels import kernel_name, kernels_for
from services.worker.engine.probing.probes import Probes
from services.worker.engine.probing.trial import try_kernel

VERSIONS = device_pb2.SoftwareVersions(torch="2.13.0", diffusers="0.42.1", torchao="0.18.0")
# A stand-in for the child: writes down its arguments, answers as told, and ends itself at a scheme of its own.
CHILD = """
import json, os, sys
with open({calls!r}, "a") as calls:
    calls.write(" ".join(sys.argv[2:]) + "\\n")
for item in sys.argv[2:]:
    print(json.dumps({{"begins": item}}), flush=True)
    if item == {crash!r}:
        os.abort()
    answer = None if item == {silent!r} else {{"works": True, "reason": ""}}
    print(json.dumps({{"ended": item, "answer": answer}}), flush=True)
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
    assert works(first) == {FP8: True, INT8: True, NVFP4: True, STORAGE: True}
    assert not first.HasField("can_compile")
    assert bench.ask() == first
    assert len(bench.asked) == 1
    assert bench.ask("cuda:0").can_compile
    assert bench.asked[1:] == [f"0 {FP8} {INT8} {NVFP4} {STORAGE}"]


def test_a_scheme_that_ends_the_child_has_failed_and_the_others_are_tried_in_another(bench: Bench) -> None:
    reading = bench.ask(crash=INT8)
    assert works(reading) == {FP8: True, INT8: False, NVFP4: True, STORAGE: True}
    assert "ended with -6" in reading.probes[1].reason
    assert bench.asked == [f"{FP8} {INT8} {NVFP4} {STORAGE}", f"{NVFP4} {STORAGE}"]


def test_running_out_of_memory_is_no_answer_and_is_tried_at_the_next_start(bench: Bench) -> None:
    assert works(bench.ask(silent=FP8)) == {INT8: True, NVFP4: True, STORAGE: True}
    assert works(bench.ask()) == {FP8: True, INT8: True, NVFP4: True, STORAGE: True}
    assert bench.asked == [f"{FP8} {INT8} {NVFP4} {STORAGE}", f"{FP8}"]


def test_a_child_that_does_not_start_leaves_everything_unknown(bench: Bench) -> None:
    reading = device_pb2.Device()
    Probes(
        torch.device("cpu"), "a device", VERSIONS, bench.folder, (sys.executable, "-c", "raise SystemExit(3)")
    ).describe(reading)
    assert not reading.probes


def test_a_broken_memory_is_made_anew(bench: Bench) -> None:
    (bench.folder / "probes.json").write_text("{broken")
    assert len(works(bench.ask())) == 4
    assert len(json.loads((bench.folder / "probes.json").read_text())) == 1


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Makes modules of the names that kernels come by."""
    for name in ("flash_attn", "flash_attn_interface", "sageattention", "xformers"):
        (tmp_path / f"{name}.py").write_text("raise RuntimeError('looked up, never imported')")
    monkeypatch.syspath_prepend(tmp_path)
    yield
    importlib.invalidate_caches()


@pytest.mark.usefixtures("packages")
@pytest.mark.parametrize(
    ("capability", "expected"),
    [
        ((7, 5), ["xformers"]),
        ((8, 9), ["flash", "sage", "xformers"]),
        ((9, 0), ["flash", "flash3", "sage", "xformers"]),
        ((12, 0), ["flash", "sage", "xformers"]),
    ],
)
def test_kernels_are_tried_where_their_package_is_and_the_capability_allows(
    capability: tuple[int, int], expected: list[str]
) -> None:
    assert [kernel_name(item) for item in kernels_for(capability)] == expected


def test_without_their_packages_no_kernel_is_tried() -> None:
    assert kernels_for((9, 0)) == []


def test_a_kernel_that_was_seen_to_run_is_told_and_one_that_was_not_is_left_out(bench: Bench) -> None:
    probes = Probes(torch.device("cpu"), "a device", VERSIONS, bench.folder, (sys.executable, "-c", ""))
    probes._wanted = ["0", "flash@2.8.3", "sage@2.2.0"]
    probes._answers = {
        "0": {"works": False, "reason": "no compiler"},
        "flash@2.8.3": {"works": True, "reason": ""},
        "sage@2.2.0": {"works": False, "reason": "no kernel image"},
        "flash@2.7.0": {"works": False, "reason": "of an older version"},
    }
    reading = device_pb2.Device()
    probes.describe(reading)
    assert list(reading.attention_kernels) == ["flash"]
    assert not reading.can_compile


def test_a_kernel_that_this_machine_lacks_fails_its_trial_with_the_reason() -> None:
    probe = try_kernel(plan_pb2.ATTENTION_BACKEND_FLASH, torch.device("cpu"))
    assert probe is not None
    assert not probe.works
    assert "flash" in probe.reason.lower()
