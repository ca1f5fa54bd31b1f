"""The validation matrix: each rule by itself, the order of the rules, and what an artifact may leave unsaid."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from darkroom.artifacts.manifest import Manifest
from darkroom.artifacts.validation import Claims, Wanted, check_claims, check_manifest
from darkroom.rpc.errors import SourceRefusedError
from darkroom.v1 import device_pb2, plan_pb2
from tests.unit.artifacts.describing import BASE, RECIPE, float8_kind, small_manifest

INT8, FP8 = device_pb2.SCHEME_INT8, device_pb2.SCHEME_FP8
WANTED = Wanted(
    bases=(BASE, "unsloth/FLUX.1-dev"),
    component="transformer",
    scheme=FP8,
    compute_type=plan_pb2.COMPUTE_TYPE_BFLOAT16,
    class_name="FluxTransformer2DModel",
    recipe=RECIPE,
)
LEGACY = Claims(
    has_tensors=True,
    scheme="fp8",
    base=BASE,
    granularity="per_row",
    floors=(1e-12,),
    min_features=512,
    exclude_names=frozenset(["norm", "embed", "lora_"]),
    requires_bfloat16=True,
    fast_accumulate=True,
)


def recipe(**changes: Any) -> plan_pb2.QuantisationRecipe:
    made = plan_pb2.QuantisationRecipe()
    made.CopyFrom(RECIPE)
    for name, value in changes.items():
        if isinstance(value, list):
            del getattr(made, name)[:]
            getattr(made, name).extend(value)
        else:
            setattr(made, name, value)
    return made


# Each row breaks one rule, in the order in which they are asked; the words are of the reason.
LEGACY_RULES: list[tuple[dict[str, Any], str]] = [
    ({"has_tensors": False}, "no state dict"),
    ({"is_rotated_format": True}, "declares no rotation"),
    ({"has_rotation": True}, "a rotation that its format has not"),
    ({"is_rotated_format": True, "has_rotation": True}, "rotated weights"),
    ({"scheme": "int8"}, "has scheme int8"),
    ({"scheme": None}, "has scheme None"),
    ({"granularity": "per_tensor"}, "granularity per_tensor"),
    ({"granularity": None}, "granularity None"),
    ({"floors": None}, "no floor"),
    ({"floors": (1e-12, 0.0)}, "no floor"),
    ({"base": None}, "does not say what model"),
    ({"base": "black-forest-labs/FLUX.1-schnell"}, "was made of black-forest-labs/FLUX.1-schnell"),
    ({"min_features": 256}, "min_features 256"),
    ({"exclude_names": frozenset(["norm"])}, "stale list .*'embed'"),
    ({"exclude_names": frozenset(["norm", "embed", "txt_in"])}, "stale list .*'txt_in'"),
    ({"requires_bfloat16": False}, "require_bf16 False"),
    ({"fast_accumulate": False}, "fast_accum False"),
]


def test_a_legacy_artifact_that_says_everything_right_is_taken() -> None:
    check_claims(LEGACY, WANTED, "a.pt")


@pytest.mark.parametrize(("changes", "words"), LEGACY_RULES, ids=[words for _, words in LEGACY_RULES])
def test_each_rule_refuses_by_itself(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(SourceRefusedError, match=words):
        check_claims(dataclasses.replace(LEGACY, **changes), WANTED, "a.pt")


@pytest.mark.parametrize("place", range(len(LEGACY_RULES) - 1))
def test_of_two_faults_the_earlier_rule_gives_the_reason(place: int) -> None:
    (first, words), (second, _) = LEGACY_RULES[place], LEGACY_RULES[-1]
    with pytest.raises(SourceRefusedError, match=words):
        check_claims(dataclasses.replace(LEGACY, **{**second, **first}), WANTED, "a.pt")


def test_what_a_legacy_artifact_does_not_say_passes_but_for_base_scheme_and_float8() -> None:
    silent = Claims(True, "fp8", BASE, "per_row", (1e-12,))
    check_claims(silent, WANTED, "a.pt")
    check_claims(Claims(True, "int8", BASE), dataclasses.replace(WANTED, scheme=INT8), "a.pt")


@pytest.mark.parametrize("base", [BASE, "unsloth/FLUX.1-dev", "UNSLOTH/flux.1-dev", "somebody/FLUX.1-dev"])
def test_a_legacy_base_may_be_a_mirror_or_end_alike(base: str) -> None:
    check_claims(dataclasses.replace(LEGACY, base=base), WANTED, "a.pt")


def test_fast_accumulation_matters_only_where_the_plan_wants_it() -> None:
    plain = dataclasses.replace(WANTED, recipe=recipe(fast_accumulate=False))
    check_claims(dataclasses.replace(LEGACY, fast_accumulate=True), plain, "a.pt")


OWN_RULES: list[tuple[Manifest, str]] = [
    (small_manifest(tensors={}), "no state dict"),
    (small_manifest(files=()), "no state dict"),
    (small_manifest(scheme=INT8), "has scheme int8"),
    (small_manifest(kinds=(float8_kind(granularity="PerTensor"),)), "granularity other"),
    (small_manifest(kinds=()), "granularity None"),
    (small_manifest(kinds=(float8_kind(None),)), "no floor"),
    (small_manifest(kinds=(float8_kind(1e-6),)), "activation floor"),
    (small_manifest(base="somebody/FLUX.1-dev"), "was made of somebody/FLUX.1-dev"),
    (small_manifest(recipe=recipe(min_features=128)), "min_features 128"),
    (small_manifest(recipe=recipe(exclude_names=["norm"])), "stale list"),
    (small_manifest(recipe=recipe(requires_bfloat16=False)), "require_bf16"),
    (small_manifest(recipe=recipe(fast_accumulate=False)), "fast_accum"),
    (small_manifest(component="transformer_2"), "component transformer_2"),
    (small_manifest(class_name="Other"), "class Other"),
    (small_manifest(compute_type=plan_pb2.COMPUTE_TYPE_FLOAT32), "compute type COMPUTE_TYPE_FLOAT32"),
    (small_manifest(recipe=recipe(feature_multiple=32)), "recipe.feature_multiple"),
    (small_manifest(recipe=recipe(exclude_exactly=["proj_out"])), "recipe.exclude_exactly"),
    (small_manifest(recipe=recipe(pad_names=["audio"])), "recipe.pad_names"),
    (small_manifest(recipe=recipe(min_rows=17)), "recipe.min_rows"),
]


def test_an_artifact_of_ours_that_is_what_is_wanted_is_taken() -> None:
    check_manifest(small_manifest(), WANTED, "artifact")


@pytest.mark.parametrize(("manifest", "words"), OWN_RULES, ids=[words for _, words in OWN_RULES])
def test_our_own_say_everything_and_all_of_it_counts(manifest: Manifest, words: str) -> None:
    with pytest.raises(SourceRefusedError, match=words):
        check_manifest(manifest, WANTED, "artifact")


def test_a_component_that_is_byte_identical_in_another_model_serves_and_another_does_not() -> None:
    encoder = dataclasses.replace(
        WANTED, component="text_encoder", bases=("Tongyi-MAI/Z-Image", "Tongyi-MAI/Z-Image-Turbo")
    )
    check_manifest(small_manifest(component="text_encoder", base="Tongyi-MAI/Z-Image-Turbo"), encoder, "artifact")
    klein = dataclasses.replace(encoder, bases=("black-forest-labs/FLUX.2-klein-4B",))
    with pytest.raises(SourceRefusedError, match="Z-Image-Turbo"):
        check_manifest(small_manifest(component="text_encoder", base="Tongyi-MAI/Z-Image-Turbo"), klein, "artifact")
