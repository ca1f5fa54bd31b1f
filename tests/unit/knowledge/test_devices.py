"""Which class a device belongs to."""

from __future__ import annotations

import pytest

from darkroom.knowledge import load_catalogue
from darkroom.knowledge.devices import class_of, is_consumer
from darkroom.rpc.errors import InvalidRequestError
from darkroom.v1 import device_pb2

CATALOGUE = load_catalogue()


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("NVIDIA GeForce RTX 4090", True),
        ("NVIDIA TITAN RTX", True),
        ("NVIDIA RTX A4000", True),  # an A4000 is no A40
        ("NVIDIA A40", False),
        ("NVIDIA A100-SXM4-80GB", False),
        ("Tesla T4", False),
        ("NVIDIA L40S", False),
        ("NVIDIA RTX 6000 Ada Generation", False),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", False),
        ("NVIDIA GB10", False),
        ("Something new", True),
        ("", True),
    ],
)
def test_names_are_compared_by_whole_words_and_unknown_ones_count_as_consumer(name: str, expected: bool) -> None:
    assert is_consumer(name) is expected


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("t4", "before-ampere"),
        ("v100", "before-ampere"),
        ("a100-80gb", "ampere"),
        ("rtx-3060", "ampere"),
        ("rtx-4090", "ada-consumer"),
        ("l4", "ada-datacenter"),
        ("h100", "hopper"),
        ("rtx-5090", "blackwell-consumer"),
        ("b200", "blackwell-datacenter"),
        ("gb10", "blackwell-datacenter"),
        ("mi300x", "rocm"),
        ("arc-a770", "xpu"),
        ("m4-max", "mps"),
        ("cpu-64gb", "cpu"),
    ],
)
def test_capability_and_market_make_the_class(key: str, expected: str) -> None:
    assert class_of(CATALOGUE.device(key)) == expected


def test_every_described_device_is_assumed_and_has_a_ladder() -> None:
    for key in CATALOGUE.devices:
        device = CATALOGUE.device(key)
        assert device.is_assumed
        assert device.memory.total_bytes > 0
        assert CATALOGUE.classes[class_of(device)].ladder


def test_a_device_of_unknown_capability_is_taken_for_the_oldest() -> None:
    assert class_of(device_pb2.Device(kind=device_pb2.DEVICE_KIND_CUDA, name="NVIDIA H100")) == "before-ampere"


def test_a_device_that_is_not_described_is_refused_with_close_names() -> None:
    with pytest.raises(InvalidRequestError, match="rtx-3090"):
        CATALOGUE.device("rtx-3091")
