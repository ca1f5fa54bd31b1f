"""What a plan compiles, and that nothing is compiled in a way that breaks."""

from __future__ import annotations

import pytest

from darkroom.knowledge import load_catalogue
from darkroom.v1 import device_pb2, plan_pb2, planner_service_pb2
from services.planner.planning import plan

CATALOGUE = load_catalogue()
MAX, OFF = plan_pb2.SPEED_MODE_MAX, plan_pb2.SPEED_MODE_OFF
BALANCED, LOW = plan_pb2.MEMORY_MODE_BALANCED, plan_pb2.MEMORY_MODE_LOW_VRAM
ADAPTER = plan_pb2.Adapter(reference="someone/style", weight=1.0)


def planned(model: str, device: str, **wishes: object) -> plan_pb2.Plan:
    preferences = plan_pb2.PlanPreferences(**wishes)  # type: ignore[arg-type]
    request = planner_service_pb2.PlanRequest(model=model, device=CATALOGUE.device(device), preferences=preferences)
    return plan(request, CATALOGUE).plan


def test_steps_are_replayed_as_graphs_on_hopper_with_all_weights_in_place_and_only_when_asked_for_the_most() -> None:
    assert planned("flux.1-dev", "h200", speed_mode=MAX).compile.cuda_graphs
    assert not planned("flux.1-dev", "h200").compile.cuda_graphs


@pytest.mark.parametrize(
    ("device", "wishes"),
    [
        ("b200", {}),
        ("rtx-pro-6000", {}),
        ("h200", {"memory_mode": BALANCED}),
        ("h200", {"memory_mode": LOW}),
        ("h200", {"adapters": [ADAPTER]}),
        ("h200", {"step_cache": plan_pb2.STEP_CACHE_KIND_FIRST_BLOCK}),
    ],
)
def test_graphs_are_planned_nowhere_else(device: str, wishes: dict[str, object]) -> None:
    answer = planned("flux.1-dev", device, speed_mode=MAX, **wishes)
    assert answer.HasField("compile")
    assert not answer.compile.cuda_graphs


@pytest.mark.parametrize(
    ("model", "wishes", "is_whole"),
    [
        ("flux.1-dev", {}, True),
        # Streamed weights, and a cache that decides by values: both break a graph.
        ("flux.1-dev", {"memory_mode": BALANCED}, False),
        ("flux.1-dev", {"step_cache": plan_pb2.STEP_CACHE_KIND_FIRST_BLOCK}, False),
        # Experts are routed by values.
        ("hidream-i1-full", {}, False),
    ],
)
def test_a_block_is_one_graph_where_nothing_breaks_it(model: str, wishes: dict[str, object], is_whole: bool) -> None:
    assert planned(model, "h200", **wishes).compile.fullgraph == is_whole


def test_decoding_is_compiled_for_pictures_decoded_whole_and_only_when_asked_for_the_most() -> None:
    assert planned("flux.1-dev", "h200", speed_mode=MAX).compile.vae
    assert not planned("flux.1-dev", "h200").compile.vae
    tiled = planned("qwen-image", "l40s", speed_mode=MAX)
    assert tiled.vae_tiling
    assert tiled.HasField("compile")
    assert not tiled.compile.vae
    assert not planned("ltx-2", "h200", speed_mode=MAX).compile.vae


@pytest.mark.parametrize(
    ("device", "wishes"),
    [
        ("h200", {"speed_mode": OFF}),
        # Weights are cast in a hook of every layer, which would break the graph at each.
        ("h200", {"scheme": device_pb2.SCHEME_FP8_STORAGE}),
        ("m4-max", {}),
        ("cpu-64gb", {}),
    ],
)
def test_nothing_is_compiled_where_it_can_not_be_had_or_is_not_wanted(device: str, wishes: dict[str, object]) -> None:
    answer = planned("z-image-turbo", device, **wishes)
    assert answer.pipeline_class
    assert not answer.HasField("compile")
    assert answer.speed_mode == OFF
