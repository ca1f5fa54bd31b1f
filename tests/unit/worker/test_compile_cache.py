"""Compiled code on disk: found again under exactly the same facts only, within its bytes, and nowhere else."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch

from bench.caches import child
from darkroom.v1 import device_pb2, plan_pb2
from services.worker.config import WorkerSettings
from services.worker.engine.assembly.compile_cache import MANIFEST, VARIABLES, fingerprint, trim, use_cache
from services.worker.engine.assembly.stage import Assembly

CPU = torch.device("cpu")


def assembly(folder: Path) -> Assembly:
    plan = plan_pb2.Plan(pipeline_class="FluxPipeline", speed_mode=plan_pb2.SPEED_MODE_DEFAULT)
    plan.components.add(name="transformer", class_name="FluxTransformer2DModel", scheme=device_pb2.SCHEME_FP8)
    plan.compile.CopyFrom(plan_pb2.CompilePlan(fullgraph=True, dynamic=True))
    return Assembly(plan, WorkerSettings(worker_cache_dir=folder), CPU)


def folder_of(made: Assembly) -> str:
    problem, put_back = use_cache(made, 2**30)
    assert not problem
    folder = Path(os.environ[VARIABLES[0]]).parent
    assert json.loads((folder / MANIFEST).read_text()) == fingerprint(made)
    put_back()
    return folder.name


def test_the_same_facts_find_the_same_folder_and_the_environment_is_put_back(tmp_path: Path) -> None:
    before = {name: os.environ.get(name) for name in VARIABLES}
    assert folder_of(assembly(tmp_path)) == folder_of(assembly(tmp_path))
    assert {name: os.environ.get(name) for name in VARIABLES} == before


def test_whatever_decides_what_code_is_made_has_a_folder_of_its_own(tmp_path: Path) -> None:
    changed = [assembly(tmp_path) for _ in range(8)]
    changed[1].plan.compile.dynamic = False
    changed[2].plan.components[0].recipe.fast_accumulate = True
    changed[3].plan.components[0].scheme = device_pb2.SCHEME_INT8
    changed[4].plan.pipeline_class = "QwenImagePipeline"
    changed[5].cache_kind = plan_pb2.STEP_CACHE_KIND_FIRST_BLOCK
    changed[6].engage("attention", resolved="flash", engaged="flash")
    changed[7].plan.speed_mode = plan_pb2.SPEED_MODE_MAX
    assert len({folder_of(made) for made in changed}) == len(changed)


@pytest.mark.parametrize("fact", ["versions", "python", "cuda", "device", "capability", "driver"])
def test_the_fingerprint_names_what_code_rests_on(tmp_path: Path, fact: str) -> None:
    assert fact in fingerprint(assembly(tmp_path))
    assert fingerprint(assembly(tmp_path))["versions"]["torch"] == torch.__version__


def test_folders_used_longest_ago_go_and_the_one_in_use_stays(tmp_path: Path) -> None:
    for place, name in enumerate(("old", "older", "used")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "code").write_bytes(bytes(1000))
        os.utime(tmp_path / name, (1000 - 100 * place, 1000 - 100 * place))
    trim(tmp_path, 2500, tmp_path / "used")
    assert {child.name for child in tmp_path.iterdir()} == {"old", "used"}
    trim(tmp_path, 10, tmp_path / "used")
    assert {child.name for child in tmp_path.iterdir()} == {"used"}


def test_a_folder_that_can_not_be_written_is_told_and_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "compiled").write_text("in the way")
    before = {name: os.environ.get(name) for name in VARIABLES}
    problem, put_back = use_cache(assembly(tmp_path), 2**30)
    assert "can't be written" in problem
    put_back()
    assert {name: os.environ.get(name) for name in VARIABLES} == before


@pytest.mark.skipif(not os.environ.get("DARKROOM_TEST_EVERYTHING"), reason="compiles for a minute, in two processes")
@pytest.mark.timeout(600)
def test_a_second_process_finds_all_the_code_of_the_first(tmp_path: Path) -> None:
    first, second = (child("cpu", tmp_path) for _ in range(2))
    assert first["found"].startswith("0 of ")
    found, _, count = second["found"].split()[:3]
    assert found == count != "0"
    assert second["compile_s"] < first["compile_s"]
    assert second["known_ms"] < second["encode_ms"]
