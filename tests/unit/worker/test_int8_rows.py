"""What int8's kernel is shown on every family, with the shortest prompt and the smallest picture."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from diffusers import WanTransformer3DModel
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


def test_wans_time_projection_stays_dense_and_its_few_words_are_padded() -> None:
    torch.manual_seed(0)
    model = WanTransformer3DModel(
        num_attention_heads=2,
        attention_head_dim=16,
        in_channels=4,
        out_channels=4,
        text_dim=32,
        freq_dim=32,
        ffn_dim=64,
        num_layers=2,
    ).eval()
    recipe = copy.deepcopy(CATALOGUE.recipe("wan2.2-a14b", INT8))
    assert recipe is not None
    recipe.min_features = 16
    quantise(model, INT8, recipe, torch.float32, CPU)
    assert type(model.condition_embedder.time_proj.weight.data) is torch.Tensor
    with Rows() as rows, torch.inference_mode():
        (values,) = model(
            hidden_states=torch.randn(1, 4, 2, 8, 8),
            timestep=torch.tensor([500]),
            encoder_hidden_states=torch.randn(1, 3, 32),
            return_dict=False,
        )
    assert min(rows.seen) >= 17
    assert torch.isfinite(values).all()
