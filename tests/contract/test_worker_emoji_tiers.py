"""The bundled model in every scheme and tier that a processor runs: where weights rest changes no picture.

That the resident model's pictures are recognised in every scheme is in test_worker_schemes.py.
"""

from __future__ import annotations

import pytest

from darkroom.v1 import device_pb2, plan_pb2
from tests.engines.emoji import PROMPT, SEED, SIDE, emoji_plan
from tests.engines.painting import Painted, differences, knobs_of, paint
from tests.engines.worker_server import WorkerServer

# Blocks in int8 and fp8 can't be streamed; see test_worker_tiers.py.
TIERS = {
    "NONE": ("NONE", "ENCODERS", "GROUP", "MODEL", "SEQUENTIAL"),
    "FP8_STORAGE": ("NONE", "ENCODERS", "GROUP", "MODEL", "SEQUENTIAL"),
    "INT8": ("NONE", "ENCODERS", "MODEL"),
    "FP8": ("NONE", "ENCODERS", "MODEL"),
}


async def paint_apple(painter: WorkerServer, steps: int) -> Painted:
    return await paint(painter, PROMPT, model="emoji", seed=SEED, steps=steps, side=SIDE, guidance=2.0)


@pytest.mark.parametrize("scheme", TIERS)
async def test_every_tier_paints_what_the_resident_model_paints(painter: WorkerServer, scheme: str) -> None:
    device = (await painter.status()).device
    if scheme == "FP8" and not device.has_native_bf16:
        pytest.skip("fp8 needs bfloat16, which this processor emulates")
    pictures: dict[str, Painted] = {}
    for tier in TIERS[scheme]:
        plan = emoji_plan(device, scheme=device_pb2.Scheme.Value(f"SCHEME_{scheme}"))
        plan.offload = plan_pb2.OffloadTier.Value(f"OFFLOAD_TIER_{tier}")
        plan.streams_text_encoders = tier == "SEQUENTIAL"
        knobs = knobs_of((await painter.load(plan))[-1].loaded)
        assert knobs["offload"].engaged == tier.lower()
        assert f"transformer={scheme.lower()}" in knobs["scheme"].engaged
        pictures[tier] = await paint_apple(painter, steps=2)
    resident = pictures.pop("NONE")
    for tier, picture in pictures.items():
        apart = differences(picture, resident)
        # Weights that have moved lie at other addresses, where kernels may sum in another order.
        assert apart.max() <= (0 if tier in ("GROUP", "ENCODERS") and scheme == "NONE" else 3), (tier, apart.max())


async def test_float8_storage_paints_nearly_what_dense_weights_paint(painter: WorkerServer) -> None:
    device = (await painter.status()).device
    await painter.load(emoji_plan(device))
    dense = await paint_apple(painter, steps=4)
    await painter.load(emoji_plan(device, scheme=device_pb2.SCHEME_FP8_STORAGE))
    stored = await paint_apple(painter, steps=4)
    error = (differences(dense, stored) ** 2).mean()
    # 20 dB: as far as two pictures of one subject are apart at a tenth of the range, and far closer than two subjects.
    assert 0 < error < 255**2 / 100
