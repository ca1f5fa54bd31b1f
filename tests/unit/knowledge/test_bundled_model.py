"""The catalogue against the files that ship with Darkroom."""

from __future__ import annotations

import json
import math
import struct
from pathlib import Path

import pytest

from darkroom.knowledge import load_catalogue

FOLDER = Path(__file__).parents[3] / "models" / "emoji"


@pytest.mark.parametrize("name", ["text_encoder", "text_encoder_2", "transformer", "vae"])
def test_the_bundled_files_hold_as_many_parameters_as_the_catalogue_counts(name: str) -> None:
    catalogue = load_catalogue()
    counted = catalogue.weights[catalogue.find("emoji").components[name].architecture]
    held = 0
    for path in (FOLDER / name).glob("*.safetensors"):
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            header = json.loads(file.read(length))
        held += sum(math.prod(entry["shape"]) for key, entry in header.items() if key != "__metadata__")
    assert held == counted.parameters
