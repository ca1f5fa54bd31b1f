"""One model on many devices, one line a device."""

from __future__ import annotations

import io

from rich.console import Console

from darkroom.cli.plan_comparison import comparison
from darkroom.knowledge import load_catalogue
from darkroom.v1 import device_pb2, model_service_pb2, plan_pb2

CATALOGUE = load_catalogue()


def test_every_device_has_a_line_whether_it_fits_or_not() -> None:
    h100, mac = CATALOGUE.device("h100"), CATALOGUE.device("m2-pro")
    denoiser = plan_pb2.ComponentPlan(
        role=plan_pb2.COMPONENT_ROLE_DENOISER, scheme=device_pb2.SCHEME_FP8, weight_bytes=12_000_000_000
    )
    planned = plan_pb2.Plan(
        components=[denoiser],
        offload=plan_pb2.OFFLOAD_TIER_NONE,
        vae_tiling=True,
        memory=plan_pb2.MemoryBudget(required_bytes=25_500_000_000, limit_bytes=65_000_000_000),
        step=plan_pb2.StepEstimate(ratio=0.617),
    )
    refused = plan_pb2.RejectedCandidate(
        memory=plan_pb2.MemoryBudget(required_bytes=37_400_000_000, limit_bytes=23_400_000_000)
    )
    responses = [
        model_service_pb2.PlanModelResponse(device=h100, plan=planned),
        model_service_pb2.PlanModelResponse(device=mac, no_fit=plan_pb2.NoFit(candidates=[refused])),
    ]
    file = io.StringIO()
    Console(file=file, width=160).print(comparison("flux.1-dev", responses))
    text = {line.split()[0]: " ".join(line.split()) for line in file.getvalue().splitlines() if line.strip()}
    assert text["h100"] == "h100 85.0 GB fp8 resident, tiles 25.5 GB 65.0 GB 0.62"
    assert text["m2-pro"] == "m2-pro 34.4 GB does not fit 37.4 GB 23.4 GB"
