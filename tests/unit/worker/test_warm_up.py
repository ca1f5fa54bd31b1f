"""Warming up at what a plan was made for, with as many pictures as a request brings, so that no request compiles it."""

from __future__ import annotations

import pytest
import torch

from darkroom.v1 import plan_pb2
from services.worker.config import WorkerSettings
from services.worker.engine.assembly.stage import Assembly
from services.worker.engine.generation import warm_up
from tests.tiny.families import family

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


@pytest.mark.parametrize("count", [0, 2])
def test_the_plans_number_of_pictures_is_brought(count: int) -> None:
    pipeline, whole = family("flux.2-klein-base-4b")
    plan = plan_pb2.Plan()
    plan.CopyFrom(whole)
    plan.workload.CopyFrom(plan_pb2.Workload(width=64, height=64, batch_size=1, reference_images=count))
    lengths = []

    def note(module: torch.nn.Module, args: tuple[object, ...], kwargs: dict[str, torch.Tensor]) -> None:
        lengths.append(kwargs["hidden_states"].shape[1])

    hook = pipeline.transformer.register_forward_pre_hook(note, with_kwargs=True)
    assembly = Assembly(plan, WorkerSettings(), torch.device("cpu"), pipeline=pipeline)
    try:
        warm_up(assembly)
    finally:
        hook.remove()
    # Tokens of four by four pixels: those of the picture, and of each that is brought.
    assert set(lengths) == {256 * (1 + count)}
    assert assembly.compiled_for == {(1, count)}
