"""A generation that is larger than its load was planned for."""

from __future__ import annotations

from darkroom.knowledge import load_catalogue
from darkroom.v1 import plan_pb2, planner_service_pb2
from services.planner.planning import plan

CATALOGUE = load_catalogue()


def ask(device: str, loaded: plan_pb2.Plan | None = None, **size: int) -> planner_service_pb2.PlanResponse:
    request = planner_service_pb2.PlanRequest(
        model="flux.1-dev", device=CATALOGUE.device(device), workload=plan_pb2.Workload(**size)
    )
    if loaded is not None:
        request.loaded.CopyFrom(loaded)
    return plan(request, CATALOGUE)


def test_a_larger_picture_that_fits_changes_nothing_but_the_arithmetic() -> None:
    loaded = ask("h100").plan
    held = ask("h100", loaded, width=2048, height=2048).plan
    assert (held.vae_tiling, held.vae_slicing) == (False, False)
    assert held.components == loaded.components
    assert held.workload.width == 2048
    assert held.memory.activation_bytes > loaded.memory.activation_bytes
    assert held.reasons[0].code == "HELD"


def test_a_batch_is_sliced_and_then_tiled_before_it_is_refused() -> None:
    loaded = ask("rtx-5090").plan
    sliced = ask("rtx-5090", loaded, batch_size=4).plan
    assert (sliced.vae_tiling, sliced.vae_slicing) == (False, True)
    tiled = ask("rtx-5090", loaded, width=2048, height=2048, batch_size=2).plan
    assert tiled.vae_tiling
    assert tiled.memory.required_bytes <= tiled.memory.limit_bytes


def test_what_does_not_fit_even_then_is_refused_with_the_numbers() -> None:
    loaded = ask("rtx-5090").plan
    refused = ask("rtx-5090", loaded, width=2048, height=2048, batch_size=16)
    (candidate,) = refused.no_fit.candidates
    assert candidate.reason.code == "WORKLOAD_TOO_LARGE"
    assert candidate.memory.required_bytes > candidate.memory.limit_bytes
    assert "GB" in candidate.reason.sentence
