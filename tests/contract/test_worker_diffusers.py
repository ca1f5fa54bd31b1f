"""The worker with its real engine, on a tiny FLUX.1 pipeline: what comes out, and what broken input does."""

from __future__ import annotations

import asyncio
import io
import os
import shutil
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import psutil
import pytest
import pytest_asyncio
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

from darkroom.rpc.errors import CorruptCheckpointError, DarkroomError, SourceRefusedError
from darkroom.rpc.status import from_rpc_error
from darkroom.v1 import generation_pb2, plan_pb2, worker_pb2
from darkroom.v1 import worker_service_pb2 as messages
from tests.engines.worker_server import WorkerServer, error_of, file_of, item, serve_worker
from tests.tiny.flux import MAX_TOKENS, save_tiny_flux, tiny_flux_plan

pytestmark = pytest.mark.asyncio(loop_scope="module")
WEIGHTS = "diffusion_pytorch_model.safetensors"


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    save_tiny_flux(folder / "tiny")
    return folder


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def worker(models: Path) -> AsyncIterator[WorkerServer]:
    async with serve_worker(
        "services.worker.engine",
        DARKROOM_WORKER_MODEL_PATHS=models,
        DARKROOM_WORKER_THREADS=1,
        DARKROOM_WORKER_DEVICE="cpu",
    ) as server:
        yield server


@pytest_asyncio.fixture(loop_scope="module")
async def loaded(worker: WorkerServer, models: Path) -> worker_pb2.LoadedModel:
    return (await worker.load(tiny_flux_plan(models / "tiny")))[-1].loaded


def broken_copy(models: Path, name: str) -> Path:
    shutil.copytree(models / "tiny", models / name)
    return models / name


async def failure_of(call: Any) -> DarkroomError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return from_rpc_error(caught.value)


async def paint(
    worker: WorkerServer, job: str, prompt: str = "a red apple", **wishes: Any
) -> tuple[bytes, generation_pb2.Output]:
    events = await worker.generate(f"run-{job}", [item(job, prompt, **wishes)], model="tiny")
    assert error_of(events, job) == ""
    return file_of(events, job), next(event.output for event in events if event.HasField("output"))


async def test_the_load_tells_planned_and_measured_bytes_and_what_engaged(loaded: worker_pb2.LoadedModel) -> None:
    # The files' headers are all that the plan counts on top of the tensors; T5's shared embedding is stored once.
    assert loaded.measured_bytes == pytest.approx(loaded.planned_bytes, rel=0.1)
    engaged = {knob.knob: knob.engaged for knob in loaded.engagements}
    assert engaged["offload"] == "none"
    assert engaged["compute_type"] == "float32"
    assert engaged["speed"] == engaged["compile"] == engaged["step_cache"] == "off"
    assert engaged["attention"] == "native"
    assert engaged["scheme"].count("=none") == 4


async def test_the_device_is_told_with_memory_and_versions(worker: WorkerServer) -> None:
    device = (await worker.status()).device
    assert device.id == "cpu"
    assert device.has_unified_memory
    assert 0 < device.memory.free_bytes <= device.memory.total_bytes
    assert device.versions.torch == torch.__version__


@pytest.mark.usefixtures("loaded")
async def test_the_same_seed_gives_the_same_bytes_and_everything_else_another_picture(worker: WorkerServer) -> None:
    first, output = await paint(worker, "first")
    again, _ = await paint(worker, "again")
    assert first == again
    others = [
        await paint(worker, "prompt", "a blue car"),
        await paint(worker, "seed", seed=1),
        await paint(worker, "steps", steps=5),
    ]
    assert len({first, *(data for data, _ in others)}) == 4
    picture = Image.open(io.BytesIO(first))
    assert picture.size == (output.width, output.height) == (64, 64)
    assert not picture.info


@pytest.mark.usefixtures("loaded")
async def test_the_picture_equals_plain_diffusers_pixel_by_pixel(worker: WorkerServer, models: Path) -> None:
    data, _ = await paint(worker, "reference", "a red apple", seed=7)
    from diffusers import FluxPipeline

    pipeline = FluxPipeline.from_pretrained(models / "tiny")
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
    difference = np.abs(np.asarray(expected, dtype=int) - np.asarray(Image.open(io.BytesIO(data)), dtype=int))
    # Weights that lie elsewhere in memory take another vector path: at most one level of rounding.
    assert difference.max() <= 1


@pytest.mark.usefixtures("loaded")
async def test_progress_counts_every_step_and_never_goes_back(worker: WorkerServer) -> None:
    events = await worker.generate("run-progress", [item("progress", steps=6)], model="tiny")
    told = [event.progress for event in events if event.HasField("progress")]
    phases = [progress.phase for progress in told]
    assert phases == sorted(phases)
    steps = [progress for progress in told if progress.phase == generation_pb2.PHASE_DENOISING]
    assert [progress.completed for progress in steps] == list(range(7))
    assert [progress.HasField("eta") for progress in steps] == [False] + [True] * 6
    fractions = [progress.fraction for progress in told]
    assert fractions == sorted(fractions)


@pytest.mark.usefixtures("loaded")
async def test_guidance_and_truncation_are_told_as_they_came_true(worker: WorkerServer) -> None:
    _, output = await paint(worker, "guided", "red apple " * 20)
    engaged = {knob.knob: knob for knob in output.engagements}
    assert engaged["guidance"].engaged == "3 (classifier-free)"
    tokens = engaged["prompt_tokens"]
    assert int(tokens.requested) > int(tokens.resolved)
    assert "tokenizer_2 reads 32 of" in tokens.reason
    unguided = item("unguided")
    unguided.request.guidance = 1.0
    events = await worker.generate("run-unguided", [unguided], model="tiny")
    output = next(event.output for event in events if event.HasField("output"))
    assert next(knob for knob in output.engagements if knob.knob == "guidance").engaged == "off"
    assert next(knob for knob in output.engagements if knob.knob == "prompt_tokens").reason == ""


@pytest.mark.usefixtures("loaded")
@pytest.mark.parametrize("prompt", ["", "🍎", "苹果", "تفاحة", "a\0b", "apple " * 2000])
async def test_any_prompt_makes_a_picture(worker: WorkerServer, prompt: str) -> None:
    data, _ = await paint(worker, f"prompt-{hash(prompt)}", prompt)
    assert data


@pytest.mark.usefixtures("loaded")
@pytest.mark.parametrize(("kind", "mime"), [("PNG", "image/png"), ("JPEG", "image/jpeg"), ("WEBP", "image/webp")])
async def test_every_format_is_written_as_it_is_called(worker: WorkerServer, kind: str, mime: str) -> None:
    wanted = item(f"as-{kind}")
    wanted.request.format = generation_pb2.OutputFormat.Value(f"OUTPUT_FORMAT_{kind}")
    events = await worker.generate(f"run-as-{kind}", [wanted], model="tiny")
    output = next(event.output for event in events if event.HasField("output"))
    assert output.content_type == mime
    assert Image.open(io.BytesIO(file_of(events, f"as-{kind}"))).format == kind


@pytest.mark.usefixtures("loaded")
async def test_a_cancel_in_the_middle_stops_at_a_step_and_the_next_picture_is_the_same(worker: WorkerServer) -> None:
    before, _ = await paint(worker, "before")
    request = messages.WorkerServiceGenerateRequest(run_id="run-long", items=[item("long", steps=2000)], model="tiny")
    call = worker.stub.Generate(request, timeout=60)
    events = []
    async for answer in call:
        events.append(answer.event)
        if len(events) == 8:
            await worker.stub.Cancel(messages.CancelRequest(job_id="long"), timeout=5)
    assert error_of(events, "long") == "CANCELLED"
    assert max(event.progress.completed for event in events if event.HasField("progress")) < 1000
    after, _ = await paint(worker, "after")
    assert after == before


async def test_weights_that_are_not_numbers_fail_the_job_and_the_next_load_works(
    worker: WorkerServer, models: Path
) -> None:
    folder = broken_copy(models, "not-a-number")
    tensors = load_file(folder / "transformer" / WEIGHTS)
    save_file(
        {name: torch.full_like(tensor, torch.nan) for name, tensor in tensors.items()}, folder / "transformer" / WEIGHTS
    )
    await worker.load(tiny_flux_plan(folder))
    events = await worker.generate("run-nan", [item("nan")], model="tiny")
    assert error_of(events, "nan") == "BROKEN_OUTPUT"
    assert events[-1].error.metadata["problem"] == "non_finite_latents"
    await worker.load(tiny_flux_plan(models / "tiny"))
    assert (await paint(worker, "after-nan"))[0]


async def test_a_picture_of_one_colour_fails_with_a_reason_of_its_own(worker: WorkerServer, models: Path) -> None:
    folder = broken_copy(models, "one-colour")
    tensors = load_file(folder / "vae" / WEIGHTS)
    tensors["decoder.conv_out.weight"] = torch.zeros_like(tensors["decoder.conv_out.weight"])
    save_file(tensors, folder / "vae" / WEIGHTS)
    await worker.load(tiny_flux_plan(folder))
    events = await worker.generate("run-flat", [item("flat")], model="tiny")
    assert events[-1].error.metadata["problem"] == "constant_picture"


def _html(path: Path) -> None:
    path.write_text("<!DOCTYPE html><html><body>404</body></html>" * 20)


def _pointer(path: Path) -> None:
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 123\n")


def _truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1000])


def _garbled(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[12:20] = b"\xff" * 8
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("spoil", "said"),
    [(_html, "HTML page"), (_pointer, "Git LFS pointer"), (_truncated, "truncated"), (_garbled, "header")],
)
async def test_a_broken_weight_file_is_named_before_anything_is_evicted(
    worker: WorkerServer, models: Path, spoil: Any, said: str
) -> None:
    await worker.load(tiny_flux_plan(models / "tiny"))
    folder = broken_copy(models, f"spoilt{spoil.__name__}")
    spoil(folder / "transformer" / WEIGHTS)
    failure = await failure_of(worker.load(tiny_flux_plan(folder, "broken")))
    assert isinstance(failure, CorruptCheckpointError)
    assert said in failure.message
    assert (await worker.status()).loaded.plan.model == "tiny"
    assert (await paint(worker, f"after{spoil.__name__}"))[0]


async def test_missing_weights_pickled_weights_and_another_pipeline_are_refused(
    worker: WorkerServer, models: Path
) -> None:
    absent = tiny_flux_plan(models / "tiny")
    absent.source.path = str(models / "nowhere")
    assert isinstance(await failure_of(worker.load(absent)), SourceRefusedError)
    pickled = broken_copy(models, "pickled")
    (pickled / "vae" / WEIGHTS).rename(pickled / "vae" / "diffusion_pytorch_model.bin")
    assert "pickled" in (await failure_of(worker.load(tiny_flux_plan(pickled)))).message
    other = tiny_flux_plan(models / "tiny")
    other.pipeline_class = "StableDiffusionPipeline"
    assert isinstance(await failure_of(worker.load(other)), SourceRefusedError)


async def test_a_tensor_that_is_missing_or_of_another_shape_is_refused_and_the_fallback_loads(
    worker: WorkerServer, models: Path
) -> None:
    folder = broken_copy(models, "incomplete")
    tensors = load_file(folder / "transformer" / WEIGHTS)
    del tensors["proj_out.weight"]
    save_file(tensors, folder / "transformer" / WEIGHTS)
    plan = tiny_flux_plan(folder)
    failure = await failure_of(worker.load(plan))
    assert isinstance(failure, CorruptCheckpointError)
    assert "proj_out.weight" in failure.message
    plan.fallbacks.add(trigger=plan_pb2.FALLBACK_TRIGGER_SOURCE_FAILED, plan=tiny_flux_plan(models / "tiny"))
    events = await worker.load(plan)
    taken = [event.fallback for event in events if event.HasField("fallback")]
    assert [fallback.trigger for fallback in taken] == [plan_pb2.FALLBACK_TRIGGER_SOURCE_FAILED]
    assert events[-1].loaded.plan.source.path == str(models / "tiny")


@pytest.mark.usefixtures("loaded")
async def test_two_items_of_one_run_are_two_pictures_as_made_alone(worker: WorkerServer) -> None:
    alone = [(await paint(worker, f"alone-{seed}", seed=seed))[0] for seed in (1, 2)]
    events = await worker.generate("run-both", [item("both-1", seed=1), item("both-2", seed=2)], model="tiny")
    assert [file_of(events, "both-1"), file_of(events, "both-2")] == alone


async def test_an_engine_that_stands_still_in_the_middle_of_a_picture_is_ended_and_replaced(
    worker: WorkerServer, models: Path
) -> None:
    plan = tiny_flux_plan(models / "tiny")
    plan.idle.denoise.FromSeconds(3)
    await worker.load(plan)
    pid = (await worker.status()).engine_pid
    request = messages.WorkerServiceGenerateRequest(run_id="run-stop", items=[item("stop", steps=5000)], model="tiny")
    events = []
    async for answer in worker.stub.Generate(request, timeout=60):
        events.append(answer.event)
        if len(events) == 8:
            os.kill(pid, signal.SIGSTOP)
    assert error_of(events, "stop") == "ENGINE_HUNG"
    assert events[-1].error.metadata["phase"] == "denoising"
    assert not psutil.pid_exists(pid)
    await worker.load(tiny_flux_plan(models / "tiny"))
    assert (await paint(worker, "after-stop"))[0]


@pytest.mark.usefixtures("loaded")
async def test_a_stream_cut_in_the_middle_is_taken_up_again_and_every_step_is_made_once(worker: WorkerServer) -> None:
    alone, _ = await paint(worker, "alone", steps=60)
    request = messages.WorkerServiceGenerateRequest(run_id="run-cut", items=[item("cut", steps=60)], model="tiny")
    call = worker.stub.Generate(request, timeout=60)
    first = [(await call.read()).event for _ in range(5)]
    call.cancel()
    rest = await worker.generate("run-cut", [], after_sequence=first[-1].sequence, model="tiny")
    told = [event.progress for event in (*first, *rest) if event.HasField("progress")]
    steps = [progress.completed for progress in told if progress.phase == generation_pb2.PHASE_DENOISING]
    assert steps == list(range(61))
    assert file_of(rest, "cut") == alone


async def test_an_engine_killed_from_outside_is_replaced_and_paints_the_same(
    worker: WorkerServer, models: Path
) -> None:
    await worker.load(tiny_flux_plan(models / "tiny"))
    before, _ = await paint(worker, "before-kill")
    pid = (await worker.status()).engine_pid
    run = asyncio.create_task(worker.generate("run-kill", [item("kill", steps=2000)], model="tiny"))
    await worker.wait_for(worker_pb2.WORKER_STATE_GENERATING)
    psutil.Process(pid).kill()
    events = await run
    assert error_of(events, "kill") == "ENGINE_DIED"
    assert events[-1].error.metadata["signal"] == "SIGKILL"
    await worker.load(tiny_flux_plan(models / "tiny"))
    assert (await paint(worker, "after-kill"))[0] == before
