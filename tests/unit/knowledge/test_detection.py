"""What ids, file names and folders are taken for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from darkroom.knowledge import load_catalogue
from darkroom.knowledge.detection import detect
from darkroom.knowledge.local_models import scan

CATALOGUE = load_catalogue()


@pytest.mark.parametrize(
    ("identifier", "model"),
    [
        ("black-forest-labs/FLUX.1-dev", "flux.1-dev"),
        ("someone/FLUX.1-Krea-dev-fp8", "flux.1-krea-dev"),
        ("unsloth/FLUX.1-schnell-GGUF", "flux.1-schnell"),
        ("city96/FLUX.1-Kontext-dev-gguf", "flux.1-kontext-dev"),
        ("unsloth/FLUX.2-klein-9B-GGUF", "flux.2-klein-9b"),
        ("black-forest-labs/FLUX.2-klein-base-4B", "flux.2-klein-base-4b"),
        ("qwen_image_edit_2509_fp8.safetensors", "qwen-image-edit-2509"),
        ("Qwen/Qwen-Image-2512", "qwen-image-2512"),
        ("Lightricks/LTX-2.3", "ltx-2.3"),
        ("Alpha-VLLM/Lumina-Image-2.0", "lumina-image-2.0"),
        ("hunyuanvideo-community/HunyuanVideo-1.5-Diffusers-720p_t2v", "hunyuanvideo-1.5-720p"),
        ("Wan-AI/Wan2.2-I2V-A14B-Diffusers", "wan2.2-i2v-a14b"),
        ("z_image_turbo_bf16.safetensors", "z-image-turbo"),
    ],
)
def test_the_longest_name_wins_as_a_whole_segment(identifier: str, model: str) -> None:
    found = detect(CATALOGUE, identifier).variant
    assert found is not None
    assert found.name == model


@pytest.mark.parametrize(
    ("identifier", "reason"),
    [
        ("tencent/HunyuanImage-3.0", "no pipeline"),
        ("Alpha-VLLM/Lumina-Next-T2I", "another architecture"),
        ("someone/lumina-remix", "bare"),
        ("tencent/HunyuanVideo", "version 1.0"),
        ("Qwen/Qwen-Image-Layered", "changes pictures"),
        ("someone/flux1x-dev", "nothing in"),
        ("someone/aflux.1-devil", "nothing in"),
    ],
)
def test_what_only_looks_like_ours_stays_unknown_with_a_reason(identifier: str, reason: str) -> None:
    detected = detect(CATALOGUE, identifier)
    assert detected.variant is None
    assert reason in detected.reason


def test_every_variant_is_found_by_its_own_repository() -> None:
    for variant in CATALOGUE:
        if repo_id := variant.source.repo_id:
            found = detect(CATALOGUE, repo_id).variant
            assert found is not None
            assert found.family == variant.family, repo_id


def pipeline(folder: Path, class_name: str, *components: str) -> Path:
    folder.mkdir(parents=True)
    index = {"_class_name": class_name, "transformer": ["diffusers", "X"], "vae": ["diffusers", "Y"]}
    (folder / "model_index.json").write_text("\ufeff" + json.dumps(index), encoding="utf-8")
    for name in components:
        (folder / name).mkdir()
        (folder / name / "diffusion_pytorch_model.safetensors").write_bytes(b"12345678")
    return folder


def test_a_pipeline_folder_is_one_model_and_its_class_beats_its_name(tmp_path: Path) -> None:
    pipeline(tmp_path / "my-flux.1-dev", "ZImagePipeline", "transformer", "vae")
    (model,) = scan(CATALOGUE, [tmp_path])
    assert model.model.startswith("z-image")
    assert model.is_complete


def test_a_snapshot_without_denoiser_weights_is_partial(tmp_path: Path) -> None:
    snapshot = tmp_path / "models--Tongyi-MAI--Z-Image-Turbo" / "snapshots" / "abc"
    pipeline(snapshot, "ZImagePipeline", "vae")
    (model,) = scan(CATALOGUE, [], hub_cache=tmp_path)
    assert (model.repo_id, model.model) == ("Tongyi-MAI/Z-Image-Turbo", "z-image-turbo")
    assert model.missing == ("transformer: no weights",)


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    folder = pipeline(tmp_path / "Z-Image-Turbo", "ZImagePipeline", "transformer", "vae")
    shards = {"a": "diffusion_pytorch_model.safetensors", "b": "other-00002.safetensors"}
    index = folder / "transformer" / "diffusion_pytorch_model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": shards}))
    (model,) = scan(CATALOGUE, [folder])
    assert model.missing == ("transformer/other-00002.safetensors",)


def test_a_sole_checkpoint_is_named_by_its_file_and_loose_helpers_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "stuff").mkdir()
    (tmp_path / "stuff" / "qwen-image-2512-Q4_K.gguf").write_bytes(b"GGUF")
    (tmp_path / "mmproj-qwen.gguf").write_bytes(b"GGUF")
    (tmp_path / "._flux.1-dev.gguf").write_bytes(b"")
    (model,) = scan(CATALOGUE, [tmp_path])
    assert model.model == "qwen-image-2512"


def test_the_bundled_model_is_whole() -> None:
    folder = Path(__file__).parents[3] / "models" / "emoji"
    (model,) = scan(CATALOGUE, [folder])
    assert (model.model, model.missing) == ("emoji", ())
