"""Every training stage at tiny size on the CPU, up to a stock pipeline that paints."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

import pytest
import torch
from diffusers import FluxPipeline
from safetensors.torch import load_file
from torch import nn

from models.emoji.training import autoencoder, denoiser, latents, vocabulary
from models.emoji.training.export import assemble, save
from models.emoji.training.flow import Words, sample
from models.emoji.training.muon import Muon, orthogonalize
from models.emoji.training.pacing import Pace, trapezoid
from models.emoji.training.painting import Settings, paint
from models.emoji.training.recall import words_of
from models.emoji.training.scenes import draw_captions, draw_scenes
from models.emoji.training.shapes import EOS_ID, TINY
from models.emoji.training.streams import SceneStream
from tests.unit.models.icons import write_icons

CPU = torch.device("cpu")


def options(work: Path, **changes: object) -> Namespace:
    """Arguments of any stage, tiny."""
    settings = {
        "work": work, "shape": "tiny", "seconds": 1e9, "steps": 6, "batch": 4, "lr": 1e-3,
        "muon_lr": 3e-3, "decay": 0.4, "warmup": 0.1, "ema": 0.9, "every": 1e9, "compile": "none",
        "init": None, "trained_s": 0.0, "eager": True, "rank": 2, "versions": 2,
        "output": work / "lora",
    }  # fmt: skip
    return Namespace(**{**settings, **changes})


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A work folder after prepare, vocabulary, autoencoder, latents and six denoiser steps."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("emoji")
    pictures = write_icons(folder)
    captions = draw_captions(draw_scenes(pictures, 20), pictures, 1)
    vocabulary.save_tokenizers(folder, captions, TINY.vocabulary)
    autoencoder.Run(options(folder), CPU).train()
    latents.write_latents(folder, 2, CPU)
    denoiser.Run(options(folder), CPU).train()
    return folder


def test_the_autoencoder_says_how_its_latents_are_normalised(work: Path) -> None:
    pixels = torch.rand(3, 3, 32, 32)
    vae = latents.AutoencoderKL.from_pretrained(work / "vae")
    tokens = latents.encode(vae, pixels)
    assert tokens.shape == (3, TINY.num_image_tokens, TINY.token_channels)
    assert latents.decode(vae, tokens).shape == pixels.shape
    assert vae.config.scaling_factor != 1.0


def test_the_denoiser_continues_where_it_stopped(work: Path) -> None:
    run = denoiser.Run(options(work, steps=9), CPU)
    assert run.pace.step == 6
    before = load_file(work / "weights.safetensors")
    run.train()
    assert run.pace.step == 9
    after = load_file(work / "weights.safetensors")
    assert any(not torch.equal(before[name], after[name]) for name in before)


def test_training_lowers_the_loss(work: Path) -> None:
    run = denoiser.Run(options(work, steps=10_000, batch=16), CPU)
    stream = SceneStream(work, CPU)
    losses = []
    for _ in range(60):
        run.pace.share = 0.5
        losses.append(run.step(run.model, stream).item())
    assert sum(losses[-10:]) < 0.9 * sum(losses[:10])


def test_the_exported_folder_paints_with_the_stock_pipeline_as_our_sampler_does(work: Path) -> None:
    save(assemble(work, TINY, shift=2.0), work / "model")
    pipeline = FluxPipeline.from_pretrained(work / "model", local_files_only=True)
    pipeline.set_progress_bar_config(disable=True)
    settings = Settings(num_steps=4, canvas_px=32)
    texts = ["a red square, 3d style", "a blue disc"]
    one, two = paint(pipeline, texts, [0, 1], settings), paint(pipeline, texts, [0, 1], settings)
    assert one[0].size == (32, 32)
    assert [i.tobytes() for i in one] == [i.tobytes() for i in two]
    compare_with_our_sampler(pipeline, work, texts[0])


def compare_with_our_sampler(pipeline: FluxPipeline, work: Path, text: str) -> None:
    """Latents of both samplers from the same noise."""
    stock = pipeline(
        text, negative_prompt="", true_cfg_scale=3.0, num_inference_steps=4, height=32, width=32,
        max_sequence_length=32, generator=torch.Generator().manual_seed(3), output_type="latent",
    ).images  # fmt: skip
    side = TINY.latent_side
    generator = torch.Generator().manual_seed(3)
    noise = latents.pack(torch.randn(1, TINY.latent_channels, side, side, generator=generator))
    run = denoiser.Run(options(work), CPU)
    weights = load_file(work / "weights.safetensors")
    run.model.load_state_dict({k: v.float() for k, v in weights.items()}, strict=False)
    words, empty = words_of(work, [text], CPU), words_of(work, [""], CPU)
    ours = sample(run.model, noise, words, empty, num_steps=4, guidance=3.0, shift=2.0)
    assert torch.allclose(ours, stock, atol=1e-3)


def test_the_adapter_loads_into_the_stock_pipeline_and_leaves_no_trace(work: Path) -> None:
    pytest.importorskip("peft", reason="LoRA needs peft")
    from models.emoji.training import adapter

    adapter.train(options(work, steps=3), CPU)
    pipeline = assemble(work, TINY)
    pipeline.set_progress_bar_config(disable=True)
    pipeline.to(torch.float32)
    settings = Settings(num_steps=2, canvas_px=32)
    before = paint(pipeline, ["a blue disc"], [0], settings)[0].tobytes()
    pipeline.load_lora_weights(work / "lora")
    assert pipeline.get_active_adapters()
    pipeline.unload_lora_weights()
    assert paint(pipeline, ["a blue disc"], [0], settings)[0].tobytes() == before


def test_captions_end_and_are_padded_to_32_tokens(work: Path) -> None:
    words: Words = words_of(work, ["a red square"], CPU)
    assert words.t5.shape == (1, 32)
    assert EOS_ID in words.t5[0].tolist()
    assert words.clip[0, 0] == 0


def test_orthogonalized_matrices_have_singular_values_near_one() -> None:
    torch.manual_seed(0)
    for rows, columns in ((16, 16), (64, 16), (16, 64)):
        values = torch.linalg.svdvals(orthogonalize(torch.randn(3, rows, columns)))
        assert values.max() < 1.3
        assert values.median() > 0.6


def test_muon_steps_all_matrices_of_a_shape_together() -> None:
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False))
    optimizer = Muon(layers.parameters(), lr=0.02)
    inputs, targets = torch.randn(64, 8), torch.randn(64, 8)
    losses = []
    for _ in range(40):
        loss = (layers(inputs) - targets).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.9 * losses[0]


def test_the_learning_rate_is_a_trapezoid() -> None:
    factors = [trapezoid(x, 0.1, 0.5) for x in (0.05, 0.1, 0.5, 0.75, 1.0)]
    assert factors == [0.5, 1.0, 1.0, 0.5, 0.0]


def test_a_budget_ends_by_steps_or_by_seconds() -> None:
    assert Pace(10, 1e9, step=10).progress() == 1.0
    pace = Pace(10**9, 100.0)
    pace.restore(5, 50.0)
    assert pace.progress() == 0.5
