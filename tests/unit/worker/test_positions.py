"""Positions that were embedded before: the same bits, computed once, taken off again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers.models.transformers.transformer_flux import FluxPosEmbed
from diffusers.models.transformers.transformer_flux2 import Flux2PosEmbed

from darkroom.v1 import engine_pb2
from services.worker.config import WorkerSettings
from services.worker.engine.assembly.line import assemble, dismantle
from services.worker.engine.assembly.positions import KNOB, KNOWN, MOST_KEPT, PositionMemory
from services.worker.engine.assembly.stage import Assembly
from services.worker.engine.generation import generate
from services.worker.engine.reporting import ItemReporter, LoadReporter
from tests.engines.worker_server import item
from tests.tiny.flux import save_tiny_flux, tiny_flux_plan

CPU = torch.device("cpu")


def assembled(folder: Path) -> Assembly:
    save_tiny_flux(folder)
    settings = WorkerSettings(worker_model_paths=str(folder.parent))
    return assemble(tiny_flux_plan(folder), settings, CPU, LoadReporter(lambda event: None, lambda: False))


def paint(assembly: Assembly, size: int = 64) -> bytes:
    events: list[engine_pb2.EngineEvent] = []
    asked = item("job", steps=3)
    asked.request.width = asked.request.height = size
    generate(assembly, [asked], [ItemReporter("job", events.append, lambda: False)])
    assert not any(event.run.HasField("error") for event in events), events
    return b"".join(event.run.chunk.data for event in events if event.run.HasField("chunk"))


def positions(size: int) -> torch.Tensor:
    return torch.cartesian_prod(torch.arange(1), torch.arange(size), torch.arange(size)).to(torch.bfloat16)


@pytest.mark.parametrize(("kind", "axes"), [(FluxPosEmbed, (4, 6, 6)), (Flux2PosEmbed, (4, 6, 6))])
def test_what_is_known_is_what_computing_gives(kind: type[torch.nn.Module], axes: tuple[int, ...]) -> None:
    assert kind.__name__ in KNOWN
    module = kind(10_000, list(axes))
    assert not list(module.parameters()) + list(module.buffers()), "its argument alone decides its answer"
    memory = PositionMemory(module.forward)
    for size in (4, 6, 4, 6, 8, 4):
        for known, computed in zip(memory(positions(size)), module(positions(size)), strict=True):
            assert torch.equal(known, computed)


class Doubling:
    """Doubles positions, and counts how often."""

    def __init__(self) -> None:
        self.num_calls = 0

    def __call__(self, ids: torch.Tensor) -> torch.Tensor:
        self.num_calls += 1
        return ids * 2


def test_other_positions_and_other_types_are_computed_and_a_few_are_kept() -> None:
    double = Doubling()
    memory = PositionMemory(double)
    ids = positions(4)
    assert torch.equal(memory(ids), memory(ids.clone()))
    assert double.num_calls == 1
    memory(ids.float())
    memory(positions(5))
    assert double.num_calls == 3
    memory(ids)
    assert double.num_calls == 4, f"{MOST_KEPT} are kept, and two came since"


def test_positions_that_are_changed_in_place_are_computed_anew() -> None:
    memory = PositionMemory(Doubling())
    ids = positions(4)
    memory(ids)
    ids += 1
    assert torch.equal(memory(ids), ids * 2)


def test_a_picture_embeds_its_positions_once_and_keeps_every_bit(tmp_path: Path) -> None:
    made = assembled(tmp_path / "flux")
    (knob,) = [knob for knob in made.engagements if knob.knob == KNOB]
    assert knob.engaged == "kept"
    module: Any = made.parts["transformer"].pos_embed
    memory, compute = module.forward, type(module).forward.__get__(module)
    assert isinstance(memory, PositionMemory)
    first = [paint(made), paint(made, 128), paint(made)]
    assert len(memory.kept_shapes) == 2, "two sizes, whatever the number of evaluations"
    module.forward = compute
    assert [paint(made), paint(made, 128), paint(made)] == first
    dismantle(made)
    assert "forward" not in vars(module)
