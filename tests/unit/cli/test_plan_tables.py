"""A plan on the screen: every term of the sum, every reason, every fallback."""

from __future__ import annotations

import io

import pytest
from rich.console import Console, RenderableType

from darkroom.cli.plan_tables import plan_report, refusal_report
from darkroom.cli.text import format_bytes, format_seconds, shorten, slug
from darkroom.v1 import checkpoint_pb2, device_pb2, model_service_pb2, plan_pb2

GB = 10**9
DEVICE = device_pb2.Device(
    id="rtx-3090", name="NVIDIA GeForce RTX 3090", is_assumed=True, memory=device_pb2.DeviceMemory(total_bytes=24 * GB)
)
MEMORY = plan_pb2.MemoryBudget(
    total_bytes=24 * GB,
    foreign_bytes=5 * GB,
    reserve_bytes=1 * GB,
    budget_bytes=18 * GB,
    fill_limit=0.85,
    limit_bytes=int(15.3 * GB),
    weight_bytes=12 * GB,
    activation_bytes=2 * GB,
    overhead_bytes=int(0.8 * GB),
    required_bytes=int(14.8 * GB),
)


def shown(renderable: RenderableType) -> str:
    file = io.StringIO()
    Console(file=file, width=140).print(renderable)
    return "\n".join(line.rstrip() for line in file.getvalue().splitlines())


@pytest.fixture
def plan() -> plan_pb2.Plan:
    plan = plan_pb2.Plan(
        model="flux.1-dev",
        engine=plan_pb2.ENGINE_DIFFUSERS,
        pipeline_class="FluxPipeline",
        source=checkpoint_pb2.CheckpointSource(repo_id="black-forest-labs/FLUX.1-dev"),
        compute_type=plan_pb2.COMPUTE_TYPE_BFLOAT16,
        offload=plan_pb2.OFFLOAD_TIER_ENCODERS,
        memory=MEMORY,
    )
    plan.components.add(
        name="transformer",
        role=plan_pb2.COMPONENT_ROLE_DENOISER,
        scheme=device_pb2.SCHEME_FP8_STORAGE,
        weight_bytes=12 * GB,
    )
    plan.reasons.add(code="SCHEME", sentence="An Ampere card has no [fp8] units, so weights are only stored in fp8.")
    below = plan_pb2.Plan()
    below.CopyFrom(plan)
    below.offload = plan_pb2.OFFLOAD_TIER_GROUP
    plan.fallbacks.add(trigger=plan_pb2.FALLBACK_TRIGGER_OUT_OF_MEMORY, plan=below)
    return plan


def test_every_term_of_the_sum_is_there(plan: plan_pb2.Plan) -> None:
    text = shown(plan_report(model_service_pb2.PlanModelResponse(plan=plan, device=DEVICE)))
    memory = text[text.index("Memory") : text.index("Why")].splitlines()
    assert [" ".join(line.split()) for line in memory[1:] if line] == [
        "device 24.0 GB",
        "− held by others 5.0 GB",
        "− kept free 1.0 GB",
        "= budget 18.0 GB",
        "× 0.85 = may be filled 15.3 GB",
        "weights 12.0 GB",
        "+ activations 2.0 GB",
        "+ runtime 800.0 MB",
        "= required 14.8 GB 500.0 MB to spare",
    ]


def test_it_tells_decisions_components_reasons_and_fallbacks(plan: plan_pb2.Plan) -> None:
    text = shown(plan_report(model_service_pb2.PlanModelResponse(plan=plan, device=DEVICE)))
    for words in (
        "flux.1-dev fits on NVIDIA GeForce RTX 3090 (rtx-3090), 24.0 GB (described, not probed)",
        "FluxPipeline on diffusers",
        "encoders: text encoders leave once the prompt is encoded",
        "fp8_storage",
        "no [fp8] units",
        "out of memory",
        "offload group, from black-forest-labs/FLUX.1-dev",
    ):
        assert words in text


@pytest.mark.parametrize(
    ("count", "said"), [(0, "1 at once"), (2, "1 at once, with 2 pictures that the request brings")]
)
def test_it_tells_what_it_is_planned_for(plan: plan_pb2.Plan, count: int, said: str) -> None:
    plan.workload.CopyFrom(plan_pb2.Workload(width=1024, height=768, batch_size=1, reference_images=count))
    report = shown(plan_report(model_service_pb2.PlanModelResponse(plan=plan, device=DEVICE)))
    assert f"1024×768, {said}\n" in report


def test_a_refusal_tells_every_candidate() -> None:
    response = model_service_pb2.PlanModelResponse(device=DEVICE)
    response.no_fit.candidates.add(
        scheme=device_pb2.SCHEME_NONE,
        offload=plan_pb2.OFFLOAD_TIER_MODEL,
        reason=plan_pb2.Reason(code="TOO_BIG", sentence="is 9 GB too big"),
        memory=MEMORY,
    )
    response.no_fit.candidates.add(
        scheme=device_pb2.SCHEME_NVFP4, reason=plan_pb2.Reason(code="NO_KERNEL", sentence="needs Blackwell")
    )
    text = shown(refusal_report("flux.2-dev", response))
    assert "flux.2-dev does not fit on" in text
    rows = [" ".join(line.split()) for line in text.splitlines()]
    assert "dense model 14.8 GB 15.3 GB is 9 GB too big" in rows
    assert any(row.startswith("nvfp4") and row.endswith("needs Blackwell") for row in rows)


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [(0, "0 B"), (999, "999 B"), (1500, "1.5 kB"), (66 * 10**6, "66.0 MB"), (2 * 10**12, "2.0 TB")],
)
def test_bytes_are_written_in_powers_of_ten(num_bytes: int, text: str) -> None:
    assert format_bytes(num_bytes) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.456, "0.46 s"), (45.6, "45.6 s"), (93, "1 min 33 s"), (7260, "2 h 1 min")]
)
def test_seconds_are_written_for_people(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text


@pytest.mark.parametrize(
    ("prompt", "name"),
    [
        ("A red apple!", "a-red-apple"),
        ("", "picture"),
        ("../../etc/passwd", "etc-passwd"),
        ("ein Apfel, süß", "ein-apfel-süß"),
        ("word " * 30, "word-word-word-word-word-word-word-word"),
        ("x" * 300, "x" * 40),
    ],
)
def test_a_prompt_becomes_a_file_name(prompt: str, name: str) -> None:
    assert slug(prompt) == name


def test_a_long_text_is_cut_on_one_line() -> None:
    assert shorten("a\nb  c", 10) == "a b c"
    assert shorten("abcdef", 4) == "abc…"
