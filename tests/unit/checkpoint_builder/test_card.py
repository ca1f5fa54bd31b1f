"""The model card: written from manifest and verdict, and added to without losing what is there."""

from __future__ import annotations

from darkroom.v1 import checkpoint_pb2, device_pb2
from services.checkpoint_builder.publishing.card import is_ours, write_card


def checkpoint(name: str, identity: str = "a" * 64) -> checkpoint_pb2.Checkpoint:
    made = checkpoint_pb2.Checkpoint(
        id=identity,
        name=name,
        base="black-forest-labs/FLUX.1-dev",
        component="transformer",
        scheme=device_pb2.SCHEME_FP8,
        size_bytes=50,
        dense_bytes=100,
        license="LicenseRef-FLUX-1-dev-Non-Commercial",
    )
    made.gates.checks.add(name="bit_identity", has_passed=True, measured="0 differ", wanted="0 differ")
    return made


def test_a_card_names_the_base_and_a_licence_that_the_hub_has_no_word_for() -> None:
    card = write_card(checkpoint("FLUX.1-dev-FP8"), "me/flux")
    front = card.split("---")[1]
    assert "license: other\nlicense_name: flux-1-dev-non-commercial\n" in front
    assert "base_model: black-forest-labs/FLUX.1-dev\nbase_model_relation: quantized" in front
    assert "| bit_identity | passed | 0 differ | 0 differ |" in card
    assert "50 % of the dense component" in card


def test_a_second_checkpoint_adds_its_section_and_a_rebuilt_one_replaces_its_own() -> None:
    first = write_card(checkpoint("FLUX.1-dev-FP8"), "me/flux")
    by_hand = first.replace("# FLUX.1-dev, quantised", "# My own title")
    both = write_card(checkpoint("FLUX.1-dev-INT8"), "me/flux", by_hand)
    again = write_card(checkpoint("FLUX.1-dev-FP8", "b" * 64), "me/flux", both)
    assert again.count("<!-- checkpoint ") == 2
    assert again.startswith(by_hand.split("<!--")[0])
    assert "a" * 64 in again
    assert "b" * 64 in again
    assert again.count("## FLUX.1-dev-FP8") == 1
    assert write_card(checkpoint("FLUX.1-dev-FP8", "b" * 64), "me/flux", again) == again


def test_a_card_of_somebody_else_is_told() -> None:
    assert is_ours(write_card(checkpoint("FLUX.1-dev-FP8"), "me/flux"))
    assert not is_ours("---\nlicense: mit\n---\n# Something else\n")
