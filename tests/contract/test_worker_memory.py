"""Loading and unloading again and again leaves memory where it was: in the engine's process and on its device."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch

from darkroom.v1 import plan_pb2
from services.worker.config import WorkerSettings
from services.worker.engine.assembly.line import assemble, dismantle
from services.worker.engine.device import read_device
from services.worker.engine.generation import generate
from services.worker.engine.reporting import ItemReporter, LoadReporter
from tests.engines.emoji import emoji_plan
from tests.engines.worker_server import item
from tests.tiny.flux import save_tiny_flux, tiny_flux_plan

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
CYCLES, WARM_UP = 50, 10
# Of a line through what is held after each cycle.
MOST_SLOPE_BYTES = 1_000_000
MakePlan = Callable[[torch.device], plan_pb2.Plan]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "tiny"
    save_tiny_flux(folder)
    return folder


@pytest.fixture(params=["tiny", "emoji"])
def make_plan(request: pytest.FixtureRequest, tiny: Path) -> MakePlan:
    if request.param == "tiny":
        return lambda device: tiny_flux_plan(tiny)
    return lambda device: emoji_plan(read_device(device, 0))


def cycles(device: torch.device, plan: plan_pb2.Plan, folder: Path) -> Iterator[None]:
    """Loads and unloads, again and again; every tenth time a step is painted between."""
    settings = WorkerSettings(worker_model_paths=str(folder))
    wanted = item("job", steps=1, side=128 if plan.model == "emoji" else 64)
    # What the libraries hold for good is left out of every collection, which are slow otherwise.
    gc.collect()
    gc.freeze()
    for number in range(CYCLES):
        made = assemble(plan, settings, device, LoadReporter(lambda event: None, lambda: False))
        if number % 10 == 0:
            generate(made, [wanted], [ItemReporter("job", lambda event: None, lambda: False)])
        dismantle(made)
        del made
        yield
    gc.unfreeze()


def test_fifty_loads_and_unloads_leave_the_process_as_large_as_it_was(make_plan: MakePlan, tiny: Path) -> None:
    device, process = torch.device("cpu"), psutil.Process()
    resident = [process.memory_info().rss for _ in cycles(device, make_plan(device), tiny.parent)]
    slope = np.polyfit(range(CYCLES - WARM_UP), resident[WARM_UP:], 1)[0]
    assert slope < MOST_SLOPE_BYTES, resident


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_fifty_loads_and_unloads_leave_a_gpu_as_it_was(make_plan: MakePlan, tiny: Path) -> None:
    device = torch.device("cuda:0")
    plan = make_plan(device)
    held = [torch.cuda.memory_allocated(device) for _ in cycles(device, plan, tiny.parent)]
    assert held[WARM_UP:] == [held[WARM_UP]] * (CYCLES - WARM_UP)
    assert held[-1] == held[0]
