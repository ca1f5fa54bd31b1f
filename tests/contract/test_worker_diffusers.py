"""The worker with its real engine, on a tiny FLUX.1 pipeline: what comes out, and what ends an engine."""

from __future__ import annotations

import io
import shutil
from pathlib import Path

import numpy as np
import psutil
import pytest
import pytest_asyncio
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

from darkroom.v1 import generation_pb2, worker_pb2
from darkroom.v1 import worker_service_pb2 as messages
from tests.engines.painting import knobs_of, paint
from tests.engines.worker_server import WorkerServer, error_of, file_of, item
from tests.tiny.flux import MAX_TOKENS, tiny_flux_plan

WEIGHTS = "diffusion_pytorch_model.safetensors"


@pytest_asyncio.fixture(loop_scope="session")
async def loaded(painter: WorkerServer, pipelines: Path) -> worker_pb2.LoadedModel:
    return (await painter.load(tiny_flux_plan(pipelines / "tiny")))[-1].loaded


def copied(pipelines: Path, name: str) -> Path:
    shutil.copytree(pipelines / "tiny", pipelines / name)
    return pipelines / name


async def test_the_load_tells_planned_and_measured_bytes_and_what_engaged(loaded: worker_pb2.LoadedModel) -> None:
    # The files' headers are all that the plan counts on top of the tensors; T5's shared embedding is stored once.
    assert loaded.measured_bytes == pytest.approx(loaded.planned_bytes, rel=0.1)
    engaged = {name: knob.engaged for name, knob in knobs_of(loaded).items()}
    assert engaged["offload"] == "none"
    assert engaged["compute_type"] == "float32"
    assert engaged["speed"] == engaged["compile"] == engaged["step_cache"] == "off"
    assert engaged["attention"] == "native"
    assert engaged["scheme"].count("=none") == 4


async def test_the_device_is_told_with_memory_and_versions(painter: WorkerServer) -> None:
    device = (await painter.status()).device
    assert device.id == "cpu"
    assert device.has_unified_memory
    assert 0 < device.memory.free_bytes <= device.memory.total_bytes
    assert device.versions.torch == torch.__version__


@pytest.mark.usefixtures("loaded")
async def test_the_same_seed_gives_the_same_bytes_and_everything_else_another_picture(painter: WorkerServer) -> None:
    first, again = await paint(painter), await paint(painter)
    assert first.data == again.data
    others = [
        await paint(painter, "a blue car"),
        await paint(painter, seed=1),
        await paint(painter, steps=5),
    ]
    assert len({first.data, *(other.data for other in others)}) == 4
    picture = Image.open(io.BytesIO(first.data))
    assert picture.size == (first.output.width, first.output.height) == (64, 64)
    assert not picture.info


@pytest.mark.usefixtures("loaded")
async def test_the_picture_equals_plain_diffusers_pixel_by_pixel(painter: WorkerServer, pipelines: Path) -> None:
    painted = await paint(painter, seed=7)
    from diffusers import FluxPipeline

    pipeline = FluxPipeline.from_pretrained(pipelines / "tiny")
    pipeline.set_progress_bar_config(disable=True)
    expected = pipeline(
        "a red apple",
        negative_prompt="",
        true_cfg_scale=3.0,
        width=64,
        height=64,
        num_inference_steps=4,
        max_sequence_length=MAX_TOKENS,
        generator=torch.Generator("cpu").manual_seed(7),
    ).images[0]
    difference = np.abs(np.asarray(expected, dtype=int) - painted.pixels)
    # Weights that lie elsewhere in memory take another vector path: at most one level of rounding.
    assert difference.max() <= 1


@pytest.mark.usefixtures("loaded")
async def test_progress_counts_every_step_and_never_goes_back(painter: WorkerServer) -> None:
    events = await painter.generate("run-progress", [item("progress", steps=6)], model="tiny")
    told = [event.progress for event in events if event.HasField("progress")]
    phases = [progress.phase for progress in told]
    assert phases == sorted(phases)
    steps = [progress for progress in told if progress.phase == generation_pb2.PHASE_DENOISING]
    assert [progress.completed for progress in steps] == list(range(7))
    assert [progress.HasField("eta") for progress in steps] == [False] + [True] * 6
    fractions = [progress.fraction for progress in told]
    assert fractions == sorted(fractions)


@pytest.mark.usefixtures("loaded")
async def test_guidance_and_truncation_are_told_as_they_came_true(painter: WorkerServer) -> None:
    engaged = (await paint(painter, "red apple " * 20)).knobs
    assert engaged["guidance"].engaged == "3 (classifier-free)"
    tokens = engaged["prompt_tokens"]
    assert int(tokens.requested) > int(tokens.resolved)
    assert "tokenizer_2 reads 32 of" in tokens.reason
    engaged = (await paint(painter, guidance=1.0)).knobs
    assert engaged["guidance"].engaged == "off"
    assert engaged["prompt_tokens"].reason == ""


@pytest.mark.usefixtures("loaded")
@pytest.mark.parametrize("prompt", ["", "🍎", "苹果", "تفاحة", "a\0b", "apple " * 2000])
async def test_any_prompt_makes_a_picture(painter: WorkerServer, prompt: str) -> None:
    assert (await paint(painter, prompt)).data


@pytest.mark.usefixtures("loaded")
@pytest.mark.parametrize(("kind", "mime"), [("PNG", "image/png"), ("JPEG", "image/jpeg"), ("WEBP", "image/webp")])
async def test_every_format_is_written_as_it_is_called(painter: WorkerServer, kind: str, mime: str) -> None:
    painted = await paint(painter, format=generation_pb2.OutputFormat.Value(f"OUTPUT_FORMAT_{kind}"))
    assert painted.output.content_type == mime
    assert Image.open(io.BytesIO(painted.data)).format == kind


@pytest.mark.usefixtures("loaded")
async def test_a_cancel_in_the_middle_stops_at_a_step_and_the_next_picture_is_the_same(painter: WorkerServer) -> None:
    before = (await paint(painter)).data
    request = messages.WorkerServiceGenerateRequest(run_id="run-long", items=[item("long", steps=2000)], model="tiny")
    call = painter.stub.Generate(request, timeout=60)
    events = []
    async for answer in call:
        events.append(answer.event)
        if len(events) == 8:
            await painter.stub.Cancel(messages.CancelRequest(job_id="long"), timeout=5)
    assert error_of(events, "long") == "CANCELLED"
    assert max(event.progress.completed for event in events if event.HasField("progress")) < 1000
    assert (await paint(painter)).data == before


async def test_weights_that_are_not_numbers_fail_the_job_and_the_next_load_works(
    painter: WorkerServer, pipelines: Path
) -> None:
    folder = copied(pipelines, "not-a-number")
    tensors = load_file(folder / "transformer" / WEIGHTS)
    save_file(
        {name: torch.full_like(tensor, torch.nan) for name, tensor in tensors.items()}, folder / "transformer" / WEIGHTS
    )
    await painter.load(tiny_flux_plan(folder))
    events = await painter.generate("run-nan", [item("nan")], model="tiny")
    assert error_of(events, "nan") == "BROKEN_OUTPUT"
    assert events[-1].error.metadata["problem"] == "non_finite_latents"
    await painter.load(tiny_flux_plan(pipelines / "tiny"))
    assert (await paint(painter)).data


async def test_a_picture_of_one_colour_fails_with_a_reason_of_its_own_unless_allowed(
    painter: WorkerServer, pipelines: Path
) -> None:
    folder = copied(pipelines, "one-colour")
    tensors = load_file(folder / "vae" / WEIGHTS)
    tensors["decoder.conv_out.weight"] = torch.zeros_like(tensors["decoder.conv_out.weight"])
    save_file(tensors, folder / "vae" / WEIGHTS)
    await painter.load(tiny_flux_plan(folder))
    events = await painter.generate("run-flat", [item("flat")], model="tiny")
    assert events[-1].error.metadata["problem"] == "constant_picture"
    allowed = await paint(painter, allows_constant=True)
    assert len(np.unique(allowed.pixels.reshape(-1, 3), axis=0)) == 1
    assert "which the caller allows" in allowed.knobs["constant_picture"].reason


async def test_a_decoder_that_gives_what_is_not_finite_fails_the_job_even_where_one_colour_is_allowed(
    painter: WorkerServer, pipelines: Path
) -> None:
    folder = copied(pipelines, "infinite")
    tensors = load_file(folder / "vae" / WEIGHTS)
    tensors["decoder.conv_out.bias"] = torch.full_like(tensors["decoder.conv_out.bias"], torch.inf)
    save_file(tensors, folder / "vae" / WEIGHTS)
    await painter.load(tiny_flux_plan(folder))
    wanted = item("infinite")
    wanted.request.allows_constant = True
    events = await painter.generate("run-infinite", [wanted], model="tiny")
    assert events[-1].error.metadata["problem"] == "non_finite_picture"


async def test_a_type_that_was_promoted_is_told_with_the_planners_reason(
    painter: WorkerServer, pipelines: Path
) -> None:
    plan = tiny_flux_plan(pipelines / "tiny")
    plan.reasons.add(code="FLOAT16_PROMOTED", sentence="Computes in float32 instead of float16.")
    told = knobs_of((await painter.load(plan))[-1].loaded)["compute_type"]
    assert (told.resolved, told.engaged, told.reason) == ("float32", "float32", plan.reasons[0].sentence)


@pytest.mark.usefixtures("loaded")
async def test_two_items_of_one_run_are_two_pictures_as_made_alone(painter: WorkerServer) -> None:
    alone = [(await paint(painter, seed=seed)).data for seed in (1, 2)]
    events = await painter.generate("run-both", [item("both-1", seed=1), item("both-2", seed=2)], model="tiny")
    assert [file_of(events, "both-1"), file_of(events, "both-2")] == alone


async def test_an_engine_that_stands_still_in_the_middle_of_a_picture_is_ended_and_replaced(
    painter: WorkerServer, pipelines: Path
) -> None:
    plan = tiny_flux_plan(pipelines / "tiny")
    plan.idle.denoise.FromSeconds(3)
    await painter.load(plan)
    pid = (await painter.status()).engine_pid
    request = messages.WorkerServiceGenerateRequest(run_id="run-stop", items=[item("stop", steps=5000)], model="tiny")
    events = []
    async for answer in painter.stub.Generate(request, timeout=60):
        events.append(answer.event)
        if len(events) == 8:
            psutil.Process(pid).suspend()
    assert error_of(events, "stop") == "ENGINE_HUNG"
    assert events[-1].error.metadata["phase"] == "denoising"
    assert not psutil.pid_exists(pid)
    await painter.load(tiny_flux_plan(pipelines / "tiny"))
    assert (await paint(painter)).data


@pytest.mark.usefixtures("loaded")
async def test_a_stream_cut_in_the_middle_is_taken_up_again_and_every_step_is_made_once(painter: WorkerServer) -> None:
    alone = (await paint(painter, steps=60)).data
    request = messages.WorkerServiceGenerateRequest(run_id="run-cut", items=[item("cut", steps=60)], model="tiny")
    call = painter.stub.Generate(request, timeout=60)
    first = [(await call.read()).event for _ in range(5)]
    call.cancel()
    rest = await painter.generate("run-cut", [], after_sequence=first[-1].sequence, model="tiny")
    told = [event.progress for event in (*first, *rest) if event.HasField("progress")]
    steps = [progress.completed for progress in told if progress.phase == generation_pb2.PHASE_DENOISING]
    assert steps == list(range(61))
    assert file_of(rest, "cut") == alone


async def test_an_engine_killed_from_outside_is_replaced_and_paints_the_same(
    painter: WorkerServer, pipelines: Path
) -> None:
    await painter.load(tiny_flux_plan(pipelines / "tiny"))
    before = (await paint(painter)).data
    engine = psutil.Process((await painter.status()).engine_pid)
    events = await painter.generate("run-kill", [item("kill", steps=2000)], model="tiny", in_denoising=engine.kill)
    assert error_of(events, "kill") == "ENGINE_DIED"
    assert events[-1].error.metadata["signal"] == "SIGKILL"
    await painter.load(tiny_flux_plan(pipelines / "tiny"))
    assert (await paint(painter)).data == before
