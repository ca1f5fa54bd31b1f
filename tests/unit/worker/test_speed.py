"""Speed modes, attention kernels and step caches in one process: what they change is put back, and told as it is."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from diffusers.models.attention_dispatch import _AttentionBackendRegistry
from PIL import Image
from torch import nn
from torch._dynamo import config as dynamo_config

from darkroom.rpc.errors import CancelledError, KernelFailedError
from darkroom.v1 import device_pb2, engine_pb2, plan_pb2
from services.worker.config import WorkerSettings
from services.worker.engine.assembly.compiling import (
    MOST_GRAPHS,
    RECOMPILE_LIMIT,
    RecompileCounter,
    compile_decoder,
    raise_limit,
    repeated_blocks,
)
from services.worker.engine.assembly.line import assemble, dismantle
from services.worker.engine.assembly.speed import SpeedStage, _compile_decoder, cuda_recorder
from services.worker.engine.assembly.stage import Assembly
from services.worker.engine.generation import generate
from services.worker.engine.probing.trial import try_compiling
from services.worker.engine.reporting import ItemReporter, LoadReporter
from tests.engines.worker_server import item
from tests.tiny.flux import save_tiny_flux, tiny_flux_plan
from tests.unit.worker.test_graphs import Recorder

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    save_tiny_flux(folder / "tiny")
    return folder / "tiny"


@pytest.fixture
def flags() -> Iterator[tuple[Any, ...]]:
    found = read_flags()
    yield found
    assert read_flags() == found


def read_flags() -> tuple[Any, ...]:
    return (
        torch.get_float32_matmul_precision(),
        torch.backends.cudnn.benchmark,
        dynamo_config.recompile_limit,
        _AttentionBackendRegistry.get_active_backend()[0],
    )


def assembled(folder: Path, **changes: Any) -> tuple[Assembly, dict[str, Any]]:
    plan = tiny_flux_plan(folder)
    plan.workload.CopyFrom(plan_pb2.Workload(width=64, height=64, batch_size=1, num_frames=1))
    for name, value in changes.items():
        if hasattr(value, "SerializeToString"):
            getattr(plan, name).CopyFrom(value)
        else:
            setattr(plan, name, value)
    settings = WorkerSettings(worker_model_paths=str(folder.parent))
    made = assemble(plan, settings, CPU, LoadReporter(lambda event: None, lambda: False))
    return made, {knob.knob: knob for knob in made.engagements}


def paint(assembly: Assembly, steps: int = 4, **wishes: Any) -> bytes:
    events: list[engine_pb2.EngineEvent] = []
    generate(assembly, [item("job", steps=steps, **wishes)], [ItemReporter("job", events.append, lambda: False)])
    return b"".join(event.run.chunk.data for event in events if event.run.HasField("chunk"))


@pytest.mark.usefixtures("flags")
def test_mode_max_sets_flags_and_off_afterwards_is_a_fresh_off_byte_for_byte(folder: Path) -> None:
    fresh, _ = assembled(folder)
    before, expected = read_flags(), paint(fresh)
    dismantle(fresh)
    fast, knobs = assembled(folder, speed_mode=plan_pb2.SPEED_MODE_MAX)
    assert read_flags() != before
    assert (knobs["speed"].engaged, knobs["compile"].engaged) == ("max", "off")
    paint(fast)
    dismantle(fast)
    assert read_flags() == before
    again, _ = assembled(folder)
    assert paint(again) == expected
    dismantle(again)


@pytest.mark.usefixtures("flags")
def test_flags_are_put_back_when_the_load_fails_after_setting_them(folder: Path) -> None:
    before = read_flags()
    call = plan_pb2.CallRecipe(guidance_argument="no_such_argument")
    with pytest.raises(KernelFailedError, match="no_such_argument"):
        assembled(folder, speed_mode=plan_pb2.SPEED_MODE_MAX, compile=plan_pb2.CompilePlan(), call=call)
    assert read_flags() == before


@pytest.mark.usefixtures("flags")
@pytest.mark.parametrize("kernel", ["CUDNN", "FLASH", "FLASH3", "FLASH4", "SAGE", "XFORMERS", "AITER"])
def test_a_kernel_that_can_not_run_here_falls_back_and_says_why(folder: Path, kernel: str) -> None:
    made, knobs = assembled(folder, attention=plan_pb2.AttentionBackend.Value(f"ATTENTION_BACKEND_{kernel}"))
    assert knobs["attention"].resolved == kernel.lower()
    assert knobs["attention"].engaged == "native"
    assert knobs["attention"].reason
    assert paint(made)
    dismantle(made)


# A cache that skips whatever it may: tiny random models change little from step to step.
FIRST_BLOCK = plan_pb2.StepCache(kind=plan_pb2.STEP_CACHE_KIND_FIRST_BLOCK, threshold=1e9)
MAGNITUDE = plan_pb2.StepCache(kind=plan_pb2.STEP_CACHE_KIND_MAGNITUDE, threshold=0.5, max_skips=3, retention=0.1)


@pytest.mark.parametrize("cache", [FIRST_BLOCK, MAGNITUDE], ids=["first_block", "magnitude"])
def test_a_cache_skips_steps_and_leaves_nothing_for_the_next_picture(
    folder: Path, cache: plan_pb2.StepCache, request: pytest.FixtureRequest
) -> None:
    made, knobs = assembled(folder, step_cache=cache)
    assert knobs["step_cache"].engaged == request.node.callspec.id
    calls = []
    last = made.parts["transformer"].single_transformer_blocks[-1]
    for attention in (module for name, module in last.named_modules() if name == "attn"):
        attention.register_forward_hook(lambda *_: calls.append(1))
    first = paint(made, 8)
    # Two evaluations a step, the prompt's and the negative one's.
    assert 2 <= len(calls) < 16
    other = paint(made, 8, seed=1)
    shorter = paint(made, 5)
    assert len({first, other, shorter}) == 3
    assert paint(made, 8) == first
    dismantle(made)
    assert not made.parts


@pytest.mark.parametrize("cache", [FIRST_BLOCK, MAGNITUDE], ids=["first_block", "magnitude"])
def test_a_cancelled_picture_leaves_nothing_in_the_cache(folder: Path, cache: plan_pb2.StepCache) -> None:
    made, _ = assembled(folder, step_cache=cache)
    first = paint(made, 8)
    told: list[engine_pb2.EngineEvent] = []
    reporter = ItemReporter("job", told.append, lambda: len(told) > 5)
    with pytest.raises(CancelledError):
        generate(made, [item("job", prompt="a blue car", steps=8, seed=5)], [reporter])
    assert paint(made, 8) == first
    dismantle(made)


def test_a_cache_that_the_denoiser_can_not_take_is_told_as_off(folder: Path) -> None:
    made, _ = assembled(folder)
    from services.worker.engine.assembly.caching import CachingStage

    made.parts["transformer"] = torch.nn.Linear(2, 2)
    made.plan.step_cache.CopyFrom(FIRST_BLOCK)
    CachingStage().apply(made, LoadReporter(lambda event: None, lambda: False))
    assert made.engagements[-1].engaged == "off"
    assert "takes no step cache" in made.engagements[-1].reason


@pytest.mark.skipif(not os.environ.get("DARKROOM_TEST_EVERYTHING"), reason="compiles for a minute")
@pytest.mark.usefixtures("flags")
def test_compiled_and_replayed_is_what_plain_is_and_off_afterwards_is_a_fresh_off_byte_for_byte(folder: Path) -> None:
    plain, _ = assembled(folder)
    fresh = paint(plain)
    expected = np.asarray(Image.open(io.BytesIO(fresh)), dtype=int)
    plain.plan.speed_mode = plan_pb2.SPEED_MODE_MAX
    plain.plan.compile.CopyFrom(plan_pb2.CompilePlan(fullgraph=True, cuda_graphs=True, vae=True))
    stage = SpeedStage(lambda device: Recorder())
    stage.apply(plain, LoadReporter(lambda event: None, lambda: False))
    knobs = {knob.knob: knob for knob in plain.engagements}
    assert knobs["compile"].engaged == "repeated blocks"
    assert knobs["cuda_graphs"].engaged == "on", knobs["cuda_graphs"].reason
    assert knobs["vae_compile"].engaged == "channels last"
    computed = np.asarray(Image.open(io.BytesIO(paint(plain))), dtype=int)
    assert np.abs(computed - expected).max() <= 2
    assert told(plain, side=96) == {"recompiles": "3", "cuda_graphs": "7 of 8 calls replayed"}
    assert told(plain, side=96) == {"recompiles": "0", "cuda_graphs": "8 of 8 calls replayed"}
    dismantle(plain)
    again, _ = assembled(folder)
    assert paint(again) == fresh
    dismantle(again)


def told(assembly: Assembly, **wishes: Any) -> dict[str, str]:
    """What speed stages told of one picture."""
    paint(assembly, **wishes)
    return {knob.knob: knob.engaged for watcher in assembly.watchers for knob in watcher.engagements()}


class Block(nn.Module):
    """What a denoiser may repeat."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.layer(rows))


@pytest.mark.usefixtures("flags")
def test_code_made_anew_is_counted_and_dropped_before_pytorchs_limit_is_met() -> None:
    forgotten: list[bool] = []
    assert MOST_GRAPHS < RECOMPILE_LIMIT
    put_back, counter = raise_limit(), RecompileCounter(lambda: forgotten.append(True), most_graphs=5)
    blocks = [Block(), Block()]
    for block in blocks:
        block.compile(backend="eager", fullgraph=True, dynamic=False)
    for rows in range(2, 9):
        counter.begin()
        for block in blocks:
            block(torch.zeros(rows, 4))
        # Blocks of one class share their code.
        assert counter.engagements()[0].engaged == "1"
    assert forgotten == [True]
    counter.begin()
    blocks[0](torch.zeros(8, 4))
    assert (counter.engagements()[0].engaged, counter.engagements()[0].reason) == ("0", "")
    torch.compiler.reset()
    put_back()


def test_blocks_are_found_by_name_or_in_the_modules_own_lists() -> None:
    class Named(nn.Module):
        _repeated_blocks = ("Block",)

    class Listed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList([Block(), Block()])
            self.heads = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])

    assert repeated_blocks(Named()) == {"Block"}
    assert repeated_blocks(Listed()) == {"Block"}
    assert not repeated_blocks(Listed(), is_named=True)
    assert not repeated_blocks(nn.Linear(4, 4))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"offload": plan_pb2.OFFLOAD_TIER_ENCODERS}, "weights come and go"),
        ({"adapters": plan_pb2.AdapterPlan(adapters=[plan_pb2.Adapter(reference="a/b", weight=1)])}, "adapters move"),
        ({}, "records no graphs"),
    ],
)
def test_graphs_that_can_not_be_safe_are_told_as_off(folder: Path, changes: dict[str, Any], reason: str) -> None:
    made, _ = assembled(folder)
    for name, value in {**changes, "compile": plan_pb2.CompilePlan(cuda_graphs=True)}.items():
        if hasattr(value, "SerializeToString"):
            getattr(made.plan, name).CopyFrom(value)
        else:
            setattr(made.plan, name, value)
    find = (lambda device: Recorder()) if changes else cuda_recorder
    assert SpeedStage(find)._replay(made) is None
    assert (made.engagements[-1].knob, made.engagements[-1].engaged) == ("cuda_graphs", "off")
    assert reason in made.engagements[-1].reason
    assert "forward" not in vars(made.parts["transformer"])
    dismantle(made)


def test_graphs_are_off_with_a_step_cache(folder: Path) -> None:
    made, _ = assembled(folder, step_cache=FIRST_BLOCK)
    made.plan.compile.CopyFrom(plan_pb2.CompilePlan(cuda_graphs=True))
    assert SpeedStage(lambda device: Recorder())._replay(made) is None
    assert "step cache" in made.engagements[-1].reason
    dismantle(made)


def test_a_decoder_of_volumes_or_tiles_is_left_alone(folder: Path) -> None:
    made, _ = assembled(folder)
    made.plan.compile.CopyFrom(plan_pb2.CompilePlan(vae=True))
    made.plan.vae_tiling = True
    assert not _compile_decoder(made)
    assert "tiles" in made.engagements[-1].reason
    vae = nn.Module()
    vae.decoder = nn.Sequential(nn.Conv3d(1, 1, 1))
    assert "three-dimensional" in compile_decoder(vae)[0]
    assert "no decoder" in compile_decoder(None)[0]
    dismantle(made)


def test_compiling_is_tried_before_it_is_promised() -> None:
    probe = try_compiling(CPU)
    assert probe is not None
    # Inductor of torch 2.13 passes include paths to the C++ compiler unquoted.
    can_compile = " " not in torch.__file__
    assert probe.works == can_compile, probe.reason


def test_uncompiled_dynamic_quantisation_is_told_with_its_price(folder: Path) -> None:
    made, knobs = assembled(folder)
    assert knobs["compile"].reason == ""
    denoiser = next(part for part in made.plan.components if part.name == "transformer")
    denoiser.scheme = device_pb2.SCHEME_INT8
    SpeedStage().apply(made, LoadReporter(lambda event: None, lambda: False))
    (told, _) = made.engagements[-2:]
    assert (told.knob, told.engaged) == ("compile", "off")
    assert "20 to 60 times slower" in told.reason
    dismantle(made)
