"""Every offload tier on a processor, where memory is the host's: the picture is what the resident model paints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from darkroom.rpc.errors import PlanRefusedError
from darkroom.v1 import device_pb2, generation_pb2, plan_pb2
from darkroom.v1 import worker_service_pb2 as messages
from tests.engines.painting import differences, failure_of, knobs_of, paint
from tests.engines.worker_server import WorkerServer, item
from tests.tiny.flux import tiny_flux_plan

# Text encoders are streamed in the tiers where they can be.
TIERS = [
    ("ENCODERS", False),
    ("ENCODERS", True),
    ("GROUP", False),
    ("GROUP", True),
    ("MODEL", False),
    ("SEQUENTIAL", True),
]
EXCLUDED = ["norm", "time_text_embed"]
RECIPE = plan_pb2.QuantisationRecipe(min_features=32, exclude_names=EXCLUDED)


def planned(pipelines: Path, tier: str = "NONE", scheme: str = "NONE", **changes: Any) -> plan_pb2.Plan:
    plan = tiny_flux_plan(pipelines / "tiny")
    plan.offload = plan_pb2.OffloadTier.Value(f"OFFLOAD_TIER_{tier}")
    part = plan.components[2]
    part.scheme = device_pb2.Scheme.Value(f"SCHEME_{scheme}")
    if scheme != "NONE":
        part.recipe.CopyFrom(RECIPE)
    for name, value in changes.items():
        setattr(plan, name, value)
    return plan


async def load(painter: WorkerServer, plan: plan_pb2.Plan) -> dict[str, generation_pb2.Engagement]:
    return knobs_of((await painter.load(plan))[-1].loaded)


@pytest.mark.parametrize(("tier", "streams"), TIERS)
async def test_a_tier_paints_what_the_resident_model_paints(
    painter: WorkerServer, pipelines: Path, tier: str, streams: bool
) -> None:
    await load(painter, planned(pipelines))
    expected = await paint(painter, steps=3)
    knobs = await load(painter, planned(pipelines, tier, streams_text_encoders=streams))
    assert knobs["offload"].engaged == tier.lower()
    assert "nothing is freed" in knobs["offload"].reason
    assert knobs["text_encoder_streaming"].engaged == ("on" if streams else "off")
    assert [(await paint(painter, steps=3)).data for _ in range(2)] == [expected.data] * 2


@pytest.mark.parametrize("tier", ["NONE", "MODEL"])
async def test_streaming_text_encoders_where_nothing_streams_them_is_refused(
    painter: WorkerServer, pipelines: Path, tier: str
) -> None:
    failure = await failure_of(painter.load(planned(pipelines, tier, streams_text_encoders=True)))
    assert isinstance(failure, PlanRefusedError)
    assert f"not streamed in tier {tier}" in failure.message


async def test_a_cancel_in_a_tier_leaves_the_next_picture_as_it_was(painter: WorkerServer, pipelines: Path) -> None:
    await load(painter, planned(pipelines, "ENCODERS"))
    before = await paint(painter)
    items = [item("long-in-a-tier", steps=2000)]
    request = messages.WorkerServiceGenerateRequest(run_id="run-in-a-tier", items=items, model="tiny")
    seen = 0
    async for _ in painter.stub.Generate(request, timeout=60):
        seen += 1
        if seen == 6:
            await painter.stub.Cancel(messages.CancelRequest(job_id="long-in-a-tier"), timeout=5)
    assert (await paint(painter)).data == before.data


async def test_decoding_in_tiles_and_one_by_one_is_told(painter: WorkerServer, pipelines: Path) -> None:
    plan = planned(pipelines, "MODEL", vae_tiling=True, vae_slicing=True, vae_tile_side=512)
    knobs = await load(painter, plan)
    assert (knobs["vae_tiling"].engaged, knobs["vae_slicing"].engaged) == ("on", "on")
    assert (await paint(painter)).data


@pytest.mark.parametrize(("tier", "scheme"), [("GROUP", "INT8"), ("SEQUENTIAL", "INT8"), ("GROUP", "FP8")])
async def test_streaming_what_breaks_when_streamed_is_refused(
    painter: WorkerServer, pipelines: Path, tier: str, scheme: str
) -> None:
    failure = await failure_of(painter.load(planned(pipelines, tier, scheme)))
    assert isinstance(failure, PlanRefusedError)
    assert "can't be streamed" in failure.message


@pytest.mark.parametrize(("tier", "scheme"), [("ENCODERS", "INT8"), ("MODEL", "INT8"), ("GROUP", "FP8_STORAGE")])
async def test_a_scheme_paints_the_same_in_a_tier_as_resident(
    painter: WorkerServer, pipelines: Path, tier: str, scheme: str
) -> None:
    pictures = []
    for place in ("NONE", tier):
        knobs = await load(painter, planned(pipelines, place, scheme))
        assert f"transformer={scheme.lower()}" in knobs["scheme"].engaged
        assert knobs["offload"].engaged == place.lower()
        pictures.append(await paint(painter, steps=3))
    # Moving weights aligns them anew, which rounds elsewhere: seen in int8 to move a pixel by a level or two.
    apart = differences(*pictures)
    assert apart.max() <= 3
    assert apart.mean() < 0.2
