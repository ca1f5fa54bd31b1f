"""`darkroom models --here`: what lies on this machine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.unit.cli.conftest import Command


def test_models_on_this_machine_are_listed_with_what_they_lack(
    darkroom: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    snapshot = tmp_path / "hub" / "models--Tongyi-MAI--Z-Image-Turbo" / "snapshots" / "abc"
    (snapshot / "vae").mkdir(parents=True)
    (snapshot / "vae" / "diffusion_pytorch_model.safetensors").write_bytes(b"12345678")
    index = {"_class_name": "ZImagePipeline", "transformer": ["diffusers", "X"], "vae": ["diffusers", "Y"]}
    (snapshot / "model_index.json").write_text(json.dumps(index))
    ran = darkroom("models", "--here", "--json")
    found = {record["model"]: record for record in json.loads(ran.out)}
    assert found["emoji"]["is_complete"]
    assert found["z-image-turbo"]["missing"] == ["transformer: no weights"]
    assert found["z-image-turbo"]["size_bytes"] == 8
