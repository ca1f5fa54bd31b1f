"""What an operator's own files say reaches the plan, to the byte."""

from __future__ import annotations

from pathlib import Path

from darkroom.knowledge import Catalogue, load_catalogue
from darkroom.v1 import device_pb2, plan_pb2, planner_service_pb2
from services.planner.planning import plan

HOUSE = """
[family]
name = "house"
media = "image"
pipeline_class = "FluxPipeline"
license = "Apache-2.0"
summary = "Ours."
source = { path = "/srv/models/house" }
defaults = { width = 512, height = 512, steps = 10, guidance = 2.0 }
limits = { min_side = 64, max_side = 1024, side_multiple = 16, max_steps = 50, max_guidance = 10.0 }
call = { guidance_argument = "guidance_scale" }
[family.components]
transformer = { role = "denoiser", architecture = "house-dit" }
vae = { role = "vae", architecture = "flux.1-vae" }
[variants.house]
[architectures.house-dit]
class_name = "diffusers:FluxTransformer2DModel"
source = "our own config.json"
[weights.house-dit]
parameters = 1000000000
schemes.fp8 = { parameters = 900000000, num_tensors = 100, scale_bytes = 400000 }
"""


def bytes_of(model: str, catalogue: Catalogue, **wishes: int) -> dict[str, int]:
    preferences = plan_pb2.PlanPreferences(**wishes)  # type: ignore[arg-type]
    request = planner_service_pb2.PlanRequest(model=model, device=catalogue.device("h100"), preferences=preferences)
    return {part.name: part.weight_bytes for part in plan(request, catalogue).plan.components}


def test_a_family_of_their_own_is_planned_by_its_own_counts(tmp_path: Path) -> None:
    (tmp_path / "house.toml").write_text(HOUSE)
    mine = load_catalogue([tmp_path])
    vae = 83_819_683 * 2
    assert bytes_of("house", mine, scheme=device_pb2.SCHEME_NONE) == {"transformer": 1_000_000_000 * 2, "vae": vae}
    # 900 million numbers in one byte with their scales, and 100 million left in two.
    fp8 = 900_000_000 + 400_000 + 100_000_000 * 2
    assert bytes_of("house", mine, scheme=device_pb2.SCHEME_FP8) == {"transformer": fp8, "vae": vae}


def test_a_count_that_they_override_moves_the_plans_of_every_model_that_holds_it_and_of_no_other(
    tmp_path: Path,
) -> None:
    (tmp_path / "mine.toml").write_text('[weights."clip-l"]\nparameters = 200000000\n')
    shipped, mine = load_catalogue(), load_catalogue([tmp_path])
    changed = bytes_of("flux.1-dev", shipped) | {"text_encoder": 200_000_000 * 2}
    assert bytes_of("flux.1-dev", mine) == changed
    assert bytes_of("qwen-image", mine) == bytes_of("qwen-image", shipped)


def test_a_denial_that_they_add_keeps_the_scheme_out_and_is_told_as_they_put_it(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(
        '[family]\nname = "flux.1"\n[variants."flux.1-dev"]\n'
        'denials = [{ role = "denoiser", schemes = ["fp8"], reason = "our hands came out with six fingers" }]\n'
    )
    mine = load_catalogue([tmp_path])
    request = planner_service_pb2.PlanRequest(model="flux.1-dev", device=mine.device("h100"))
    answer = plan(request, mine).plan
    assert device_pb2.SCHEME_FP8 not in {part.scheme for part in answer.components}
    told = [reason.sentence for reason in answer.reasons if reason.code == "SCHEME_DENIED"]
    assert told == ["fp8 is denied for flux.1-dev: our hands came out with six fingers."]
