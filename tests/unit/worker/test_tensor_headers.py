"""Headers of weight files: whatever is turned in them, they are refused by our error or read as something definite."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from darkroom.rpc.errors import CorruptCheckpointError
from services.worker.component_files import read_gguf
from services.worker.tensor_headers import TensorHeader, read_safetensors
from tests.tiny.weight_files import write_gguf

TENSORS = {"layer.weight": torch.ones(32, 64), "layer.bias": torch.ones(32), "norm.weight": torch.ones(64)}
SHAPES = {name: tuple(tensor.shape) for name, tensor in TENSORS.items()}
Read = Callable[[Path], Mapping[str, TensorHeader]]


@pytest.fixture(params=["safetensors", "gguf"])
def file(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, Read]:
    path = tmp_path / f"weights.{request.param}"
    if request.param == "gguf":
        write_gguf(path, TENSORS)
        return path, read_gguf
    save_file(TENSORS, path, metadata={"format": "pt"})
    return path, read_safetensors


def test_a_whole_file_tells_its_tensors(file: tuple[Path, Read]) -> None:
    path, read = file
    assert {name: tensor.shape for name, tensor in read(path).items()} == SHAPES
    wanted = "Q8_0" if path.suffix == ".gguf" else "F32"
    assert read(path)["layer.weight"].kind == wanted


def test_a_flipped_bit_of_a_header_is_refused_or_leaves_a_header_that_agrees_with_the_file(
    file: tuple[Path, Read],
) -> None:
    path, read = file
    whole, numbers = path.read_bytes(), random.Random(1)
    header_end = whole.index(b"\x00\x00\x80\x3f") if path.suffix == ".safetensors" else 320
    refused = []
    for place in range(header_end):
        content = bytearray(whole)
        content[place] ^= 1 << numbers.randrange(8)
        path.write_bytes(content)
        try:
            assert read(path)
        except CorruptCheckpointError as failure:
            refused.append(failure.message)
    assert len(refused) > header_end // 3
    assert all(path.name in message for message in refused)


@pytest.mark.parametrize("keep", [0, 1, 7, 8, 9, 40, 0.5, 0.99])
def test_every_truncation_is_refused(file: tuple[Path, Read], keep: float) -> None:
    path, read = file
    whole = path.read_bytes()
    path.write_bytes(whole[: keep if isinstance(keep, int) else int(keep * len(whole))])
    with pytest.raises(CorruptCheckpointError):
        read(path)
