"""The one filter that decides which layers a recipe takes."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from darkroom.knowledge import load_catalogue
from darkroom.knowledge.recipes import recipe_of
from darkroom.modeling.filters import taken_layers, takes
from darkroom.v1 import device_pb2, plan_pb2

CATALOGUE = load_catalogue()
RECIPE = plan_pb2.QuantisationRecipe(
    min_features=512, feature_multiple=16, exclude_names=["norm"], requires_bfloat16=True
)


@pytest.mark.parametrize(
    ("name", "shape", "is_bfloat16", "expected"),
    [
        ("blocks.0.attn.to_q", (512, 512), True, True),
        ("blocks.0.attn.to_q", (511, 512), True, False),
        ("blocks.0.attn.to_q", (512, 520), True, False),
        ("blocks.0.norm1.linear", (3072, 3072), True, False),
        ("blocks.0.lora_A.default", (3072, 3072), True, False),
        ("blocks.0.attn.to_q", (3072, 3072), False, False),
        ("", (3072, 3072), True, False),
    ],
)
def test_it_takes_a_layer_by_name_features_and_type(name, shape, is_bfloat16, expected) -> None:
    assert takes(RECIPE, name, *shape, is_bfloat16=is_bfloat16) is expected


def test_a_live_module_is_filtered_by_its_own_types() -> None:
    module = nn.ModuleDict({"a": nn.Linear(512, 512), "b": nn.Linear(512, 512, dtype=torch.bfloat16)})
    assert [name for name, _ in taken_layers(module, RECIPE)] == ["b"]


def test_convolutions_are_taken_only_by_recipes_that_say_so() -> None:
    module = nn.ModuleDict({"conv": nn.Conv2d(8, 8, 3, dtype=torch.bfloat16)})
    assert not list(taken_layers(module, plan_pb2.QuantisationRecipe()))
    assert list(taken_layers(module, plan_pb2.QuantisationRecipe(takes_convolutions=True)))


@pytest.mark.filterwarnings("ignore::Warning")
def test_storage_casting_leaves_dense_what_each_class_asks_to_leave() -> None:
    import diffusers

    for name, architecture in CATALOGUE.architectures.items():
        library, _, class_name = architecture.class_name.partition(":")
        if library != "diffusers":
            continue
        kind = getattr(diffusers, class_name)
        rule = CATALOGUE.schemes[device_pb2.SCHEME_FP8_STORAGE]
        recipe = recipe_of(rule, architecture, device_pb2.SCHEME_FP8_STORAGE)
        asked = set(kind._skip_layerwise_casting_patterns or ())
        missing = {part for part in asked if not any(own in part for own in recipe.exclude_names)}
        assert not missing, (name, missing)
