"""File names: what is on the Hub already has them, so they are written out."""

from __future__ import annotations

import re

import pytest

from darkroom.artifacts.names import index_name, legacy_stem, shard_name, stem_of
from darkroom.knowledge import load_catalogue
from darkroom.knowledge.sharing import bases_of
from darkroom.v1 import device_pb2

INT8, FP8, STORAGE = device_pb2.SCHEME_INT8, device_pb2.SCHEME_FP8, device_pb2.SCHEME_FP8_STORAGE
CATALOGUE = load_catalogue()


@pytest.mark.parametrize(
    ("base", "component", "scheme", "stem", "legacy"),
    [
        ("black-forest-labs/FLUX.1-dev", "transformer", FP8, "FLUX.1-dev-FP8", "transformer_fp8"),
        ("x/FLUX.1-dev-FP8", "transformer", INT8, "FLUX.1-dev-INT8", "transformer_int8"),
        ("Wan-AI/Wan2.2-T2V", "transformer_2", INT8, "Wan2.2-T2V-INT8-2", "transformer_2_int8"),
        ("HiDream-ai/HiDream-I1-Full", "text_encoder_4", STORAGE, "HiDream-I1-Full-text_encoder_4-FP8", None),
        ("a/B", "text_encoder", FP8, "B-text_encoder-FP8-DYNAMIC", None),
        ("a/B", "transformer", STORAGE, "B-FP8-STORAGE", "transformer_fp8_storage"),
        ("emoji", "transformer", device_pb2.SCHEME_NVFP4, "emoji-NVFP4", "transformer_nvfp4"),
        ("a/B", "unet", INT8, "B-INT8", "unet_int8"),
    ],
)
def test_a_name_says_model_component_and_scheme(base, component, scheme, stem, legacy) -> None:
    assert stem_of(base, component, scheme) == stem
    assert legacy_stem(component, scheme) == legacy


def test_one_file_has_the_plain_name_and_several_are_numbered() -> None:
    assert shard_name("a", 1, 1) == "a.safetensors"
    assert shard_name("a", 2, 3) == "a-00002-of-00003.safetensors"
    assert index_name("a") == "a.safetensors.index.json"


def words_of(stem: str) -> set[str]:
    return set(re.split("[-_]", stem.casefold()))


def test_every_hosted_artifact_of_the_catalogue_is_named_for_a_base_that_its_component_serves() -> None:
    checked = 0
    for variant in CATALOGUE:
        for item in variant.artifacts:
            bases = bases_of(variant, item.component, CATALOGUE.sharing.values())
            stems = {stem_of(base, item.component, item.scheme) for base in bases}
            told = words_of(item.file.removesuffix(".pt"))
            # Names of files leave out what a repository says of its layout and task.
            assert any(words_of(stem) - told <= {"diffusers", "t2v"} for stem in stems), (variant.name, item.file)
            checked += 1
    assert checked >= 30
