"""From a store of artifacts to a picture: what the builder keeps is what `darkroom generate` runs, on the processor."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from diffusers import FluxTransformer2DModel

from darkroom.artifacts.gates import Gates
from darkroom.artifacts.names import stem_of
from darkroom.artifacts.store import ArtifactStore
from darkroom.knowledge import load_catalogue
from darkroom.storage import open_store
from darkroom.v1 import device_pb2
from tests.engines.emoji import PROMPT, SEED, SHOWN, shows
from tests.integration.conftest import ROOT, RunningStack
from tests.integration.test_command_and_examples import darkroom
from tests.tiny.artifact import PASSED, build_artifact

INT8 = device_pb2.SCHEME_INT8


@pytest.fixture
def artifact_ids(stack: RunningStack, tmp_path: Path) -> Iterator[list[str]]:
    """The bundled denoiser in int8, for processors that compute in bfloat16 and for those that don't."""
    recipe = load_catalogue().recipe("emoji-transformer", INT8)
    assert recipe is not None
    store, made_ones = ArtifactStore(open_store(stack.data_dir / "checkpoints")), []
    for compute_type in (torch.bfloat16, torch.float32):
        made = build_artifact(
            tmp_path / str(compute_type),
            ROOT / "models" / "emoji" / "transformer",
            FluxTransformer2DModel,
            "transformer",
            INT8,
            recipe,
            base="emoji",
            compute_type=compute_type,
        )
        store.add(made.manifest, made.paths)
        store.pass_gates(made.manifest, Gates(made.manifest.id, PASSED))
        made_ones.append(made.manifest)
    yield [manifest.id for manifest in made_ones]
    for manifest in made_ones:
        store.remove(stem_of("emoji", "transformer", INT8), manifest.id)


def test_generate_in_int8_uses_the_artifact_in_the_store(
    stack: RunningStack, tmp_path: Path, artifact_ids: list[str]
) -> None:
    picture = tmp_path / "a.png"
    darkroom(
        stack,
        tmp_path,
        "generate",
        PROMPT,
        "--scheme",
        "int8",
        "--seed",
        str(SEED),
        "--output",
        str(picture),
    )
    assert shows(picture.read_bytes()) == SHOWN
    status = darkroom(stack, tmp_path, "status", "--json")
    assert sum(f"transformer: artifact {identity[:12]}" in status for identity in artifact_ids) == 1
