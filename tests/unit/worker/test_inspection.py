"""What a worker's disk says of a model."""

from __future__ import annotations

from pathlib import Path

import pytest

from darkroom.rpc.errors import UnknownModelError
from services.worker.config import WorkerSettings
from services.worker.inspection import Inspector, weighted_components
from tests.engines.worker_server import rehearsal_models


def test_a_bundled_model_that_is_there_needs_no_download(tmp_path: Path) -> None:
    folder = rehearsal_models(tmp_path)
    (folder / "rehearsal").rename(folder / "emoji")
    answer = Inspector(WorkerSettings(models_dir=folder)).inspect("emoji")
    assert answer.is_present
    assert answer.present_bytes == 10
    assert answer.disk_free_bytes > 0
    assert answer.problem == ""


def test_a_bundled_model_that_is_missing_or_broken_says_why(tmp_path: Path) -> None:
    inspector = Inspector(WorkerSettings(models_dir=tmp_path))
    answer = inspector.inspect("emoji")
    assert not answer.is_present
    assert "no model folder" in answer.problem
    (rehearsal_models(tmp_path) / "rehearsal").rename(tmp_path / "emoji")
    (tmp_path / "emoji" / "transformer" / "diffusion_pytorch_model.safetensors").write_text("<html></html>")
    answer = inspector.inspect("emoji")
    assert not answer.is_present
    assert "HTML" in answer.problem


def test_an_unknown_model_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UnknownModelError):
        Inspector(WorkerSettings(models_dir=tmp_path)).inspect("nobody")


def test_only_components_with_a_configuration_of_weights_count(tmp_path: Path) -> None:
    assert weighted_components(rehearsal_models(tmp_path) / "rehearsal") == ["transformer"]
