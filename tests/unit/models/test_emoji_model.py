"""The committed emoji model: it loads, paints what is asked, quantises, and stays small."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from diffusers import FluxPipeline
from PIL import Image

from models.emoji.retrieval import Reference, load_reference
from models.emoji.training.captions import Wish, prompt
from models.emoji.training.compose import COLOURS
from models.emoji.training.painting import Settings, is_quantizable, paint, quantize_transformer
from models.emoji.training.pixel_art import pixelness

MODEL = Path(__file__).resolve().parents[3] / "models" / "emoji"
QUICK = Settings(num_steps=4, guidance=1.0)
WISHES = (
    Wish("red apple", "3d", "blue"),
    Wish("pizza", "flat", "light green"),
    Wish("unicorn", "3d", "pink"),
)


def load(dtype: torch.dtype) -> FluxPipeline:
    torch.set_num_threads(1)
    pipeline = FluxPipeline.from_pretrained(MODEL, dtype=dtype, local_files_only=True)
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


@pytest.fixture(scope="module")
def pipeline() -> FluxPipeline:
    return load(torch.float32)


@pytest.fixture(scope="module")
def reference() -> Reference:
    return load_reference(MODEL / "reference")


@pytest.fixture(scope="module")
def painted(pipeline: FluxPipeline) -> list[Image.Image]:
    return paint(pipeline, [prompt(wish) for wish in WISHES], [0, 1, 2], QUICK)


def shows(image: Image.Image, wish: Wish, reference: Reference) -> bool:
    """Whether the picture is the asked emoji, style and background."""
    best = reference.nearest(image, 1)[0]
    is_subject = wish.name in best.names and best.style == wish.style
    return is_subject and reference.background(image) == wish.background


def test_the_pictures_show_what_the_prompts_ask(painted: list[Image.Image], reference: Reference) -> None:
    for image, wish in zip(painted, WISHES, strict=True):
        assert image.size == (128, 128)
        assert shows(image, wish, reference), (wish, reference.nearest(image, 3))


def test_the_same_seed_paints_the_same_picture(pipeline: FluxPipeline) -> None:
    texts = [prompt(WISHES[0])]
    first, second = (paint(pipeline, texts, [0], QUICK)[0].tobytes() for _ in range(2))
    assert first == second


def test_the_reference_set_tells_other_subjects_apart(painted: list[Image.Image], reference: Reference) -> None:
    assert not shows(painted[0], Wish("pizza", "3d", "blue"), reference)
    assert not shows(painted[0], Wish("red apple", "3d", "navy"), reference)
    halves = Image.new("RGB", (128, 128), "yellow")
    halves.paste("blue", (20, 20, 108, 64))
    halves.paste("black", (20, 64, 108, 108))
    wrong = reference.nearest(halves, 1)[0].distance
    assert wrong > 3 * reference.nearest(painted[0], 1)[0].distance


def test_the_reference_set_is_complete(reference: Reference) -> None:
    assert len(reference.codes) >= 2000
    assert len(reference.all_names()) >= 1200
    assert reference.rgba.shape == (len(reference.codes), 32, 32, 4)
    assert reference.colours == COLOURS
    assert set(reference.styles_of("red apple")) == {"3d", "flat"}


def test_quantisation_covers_nearly_all_block_weights(pipeline: FluxPipeline) -> None:
    linears = {
        name: module
        for name, module in pipeline.transformer.named_modules()
        if isinstance(module, torch.nn.Linear) and "transformer_blocks." in name
    }
    total = sum(module.weight.numel() for module in linears.values())
    covered = sum(m.weight.numel() for name, m in linears.items() if is_quantizable(m, name))
    assert covered >= 0.9 * total


def test_int8_paints_the_same_subject(reference: Reference) -> None:
    pipeline = load(torch.bfloat16)
    quantize_transformer(pipeline.transformer, "int8-dynamic")
    image = paint(pipeline, [prompt(WISHES[0])], [0], QUICK)[0]
    assert shows(image, WISHES[0], reference)


def test_fp8_storage_paints_the_same_subject(reference: Reference) -> None:
    pipeline = load(torch.bfloat16)
    pipeline.transformer.enable_layerwise_casting(storage_dtype=torch.float8_e4m3fn, compute_dtype=torch.bfloat16)
    image = paint(pipeline, [prompt(WISHES[0])], [0], QUICK)[0]
    assert shows(image, WISHES[0], reference)


def test_the_adapter_makes_pixel_art() -> None:
    pytest.importorskip("peft", reason="LoRA needs peft")
    pipeline = load(torch.float32)
    pipeline.load_lora_weights(MODEL / "adapters" / "pixel-art")
    image = paint(pipeline, ["a red apple, 3d style, blue background"], [0], QUICK)[0]
    pixels = torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8)
    pixels = pixels.view(1, 128, 128, 3).permute(0, 3, 1, 2) / 127.5 - 1
    assert pixelness(pixels).item() > 0.5


def test_the_folder_is_small_and_says_nothing_of_where_it_was_made() -> None:
    weights = sum(f.stat().st_size for f in MODEL.glob("*/*.safetensors"))
    assert weights <= 32 * 2**20
    adapter = MODEL / "adapters" / "pixel-art" / "pytorch_lora_weights.safetensors"
    assert adapter.stat().st_size <= 2**20
    assert sum(f.stat().st_size for f in (MODEL / "reference").iterdir()) <= 5 * 2**20
    for config in MODEL.glob("*/*config.json"):
        path = json.loads(config.read_text()).get("_name_or_path", "")
        assert path == "", config
