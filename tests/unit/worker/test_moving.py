"""Weights that are moved while a picture is made, as offload tiers do."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from darkroom.modeling.quantise import SCHEMES, quantise
from darkroom.v1 import device_pb2, plan_pb2
from services.worker.engine.generation import without_gradients

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
TIERS = [plan_pb2.OFFLOAD_TIER_ENCODERS, plan_pb2.OFFLOAD_TIER_MODEL]


def planned(scheme: int, tier: int) -> plan_pb2.Plan:
    plan = plan_pb2.Plan(offload=tier)  # type: ignore[arg-type]
    plan.components.add(name="transformer", scheme=scheme)  # type: ignore[arg-type]
    return plan


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("scheme", sorted(SCHEMES))
def test_quantised_weights_can_be_moved_to_another_device_during_a_call(scheme: int, tier: int) -> None:
    model = nn.Sequential(nn.Linear(64, 64)).to(torch.bfloat16)
    recipe = plan_pb2.QuantisationRecipe(activation_floor=1e-12)
    quantise(model, scheme, recipe, torch.bfloat16, torch.device("cpu"))
    with without_gradients(planned(scheme, tier)):
        assert not torch.is_grad_enabled()
        model.to("meta")
    assert model[0].weight.device.type == "meta"


def test_calls_that_move_nothing_or_plain_tensors_only_run_in_inference_mode() -> None:
    for plan in (
        planned(device_pb2.SCHEME_FP8, plan_pb2.OFFLOAD_TIER_NONE),
        planned(device_pb2.SCHEME_NONE, plan_pb2.OFFLOAD_TIER_MODEL),
        planned(device_pb2.SCHEME_FP8_STORAGE, plan_pb2.OFFLOAD_TIER_GROUP),
    ):
        with without_gradients(plan):
            assert torch.is_inference_mode_enabled()
