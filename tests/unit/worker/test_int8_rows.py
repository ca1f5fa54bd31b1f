"""What int8's kernel is shown on every family, with the shortest prompt and the smallest picture."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode

from darkroom.knowledge import load_catalogue
from darkroom.modeling.quantise import quantise
from darkroom.modeling.row_scaled import INT8
from tests.tiny.families import FAMILIES, family, latents_of

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning", "ignore::FutureWarning")
CATALOGUE = load_catalogue()
CPU = torch.device("cpu")


class Rows(TorchFunctionMode):
    """Notes the rows of every product with an int8 weight."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[int] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.nn.functional.linear and type(args[1].data).__name__ == "Int8Tensor":
            self.seen.append(args[0].numel() // args[0].shape[-1])
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("model", FAMILIES)
def test_no_layer_that_int8_takes_shows_its_kernel_fewer_rows_than_it_takes(model: str) -> None:
    pipeline, plan = family(model)
    variant, dense = CATALOGUE.find(model), {}
    for part in plan.components:
        if part.name == "vae":
            continue
        recipe = copy.deepcopy(CATALOGUE.recipe(variant.components[part.name].architecture, INT8))
        assert recipe is not None
        assert recipe.min_rows == 17
        recipe.min_features = 16
        dense[part.name] = getattr(pipeline, part.name)
        module = copy.deepcopy(dense[part.name])
        assert quantise(module, INT8, recipe, torch.float32, CPU).num_unproven == 0
        setattr(pipeline, part.name, module)
    try:
        with Rows() as rows:
            values = latents_of(pipeline, plan, "a")
    finally:
        for name, module in dense.items():
            setattr(pipeline, name, module)
    assert rows.seen
    assert min(rows.seen) >= 17
    assert torch.isfinite(values).all()
