"""Dense components as the runtime reads them: assigned to modules on the meta device, equal to what was saved."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from darkroom.modeling.dense import find_class, read_folder
from darkroom.modeling.fitting import count_parameters, fit_folder
from darkroom.modeling.random_weights import build_random
from darkroom.modeling.skeleton import construct
from darkroom.rpc.errors import SourceRefusedError
from tests.tiny import flux, hidream, qwen_image, z_image
from tests.tiny.parts import build_from

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
CPU, BFLOAT16 = torch.device("cpu"), torch.bfloat16
PIPELINES: dict[str, Callable[[], Any]] = {
    "flux.1": flux.build,
    "z-image": z_image.build,
    "qwen-image": qwen_image.build,
    "hidream-i1": hidream.build,
}
Saved = tuple[Path, Any]


@pytest.fixture(scope="module", params=PIPELINES)
def saved(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Saved:
    """A folder, and the pipeline that was saved to it: dense, in memory of its own."""
    folder = tmp_path_factory.mktemp("pipelines") / request.param
    pipeline = build_from(PIPELINES[request.param])
    pipeline.save_pretrained(folder)
    return folder, pipeline


def components(saved: Saved) -> list[tuple[str, Any, nn.Module]]:
    """(name, class, original) of everything that has weights."""
    parts = saved[1].components.items()
    return [(name, type(part), part.eval()) for name, part in parts if isinstance(part, nn.Module)]


def test_weights_assigned_on_meta_equal_dense_ones_buffers_included(saved: Saved) -> None:
    for name, kind, dense in components(saved):
        read = read_folder(kind, saved[0] / name, torch.float32, name)
        assert not read.training
        for told in ("named_parameters", "named_buffers"):
            ours, theirs = dict(getattr(read, told)()), dict(getattr(dense, told)())
            assert ours.keys() == theirs.keys()
            for key, tensor in ours.items():
                assert tensor.dtype == theirs[key].dtype
                assert torch.equal(tensor, theirs[key]), (name, key)


def test_what_fits_is_counted_without_being_read(saved: Saved) -> None:
    for name, kind, dense in components(saved):
        fitted = fit_folder(kind, saved[0] / name, name)
        assert all(parameter.is_meta for parameter in fitted.parameters())
        assert count_parameters(fitted) == count_parameters(dense)


def test_the_default_type_is_as_it_was_after_a_fit(saved: Saved) -> None:
    torch.set_default_dtype(BFLOAT16)
    try:
        for name, kind, _ in components(saved):
            fit_folder(kind, saved[0] / name, name)
            assert torch.get_default_dtype() == BFLOAT16
    finally:
        torch.set_default_dtype(torch.float32)


def test_random_weights_have_the_shapes_types_and_ties_of_real_ones(saved: Saved) -> None:
    for name, kind, _ in components(saved):
        config = json.loads((saved[0] / name / "config.json").read_text())
        clean = {key: value for key, value in config.items() if not key.startswith("_")}
        made, again = [build_random(functools.partial(construct, kind, clean), BFLOAT16, CPU, CPU) for _ in range(2)]
        read = read_folder(kind, saved[0] / name, BFLOAT16, name)
        ours, theirs = dict(made.named_parameters()), dict(read.named_parameters())
        told = [{key: (value.shape, value.dtype) for key, value in each.items()} for each in (ours, theirs)]
        assert told[0] == told[1]
        assert all(torch.equal(value, other) for value, other in zip(ours.values(), again.parameters(), strict=True))
        assert all(torch.isfinite(value).all() for value in ours.values())


@pytest.mark.parametrize(("library", "name"), [("os", "system"), ("torch", "load"), ("diffusers", "NoSuch"), ("", "")])
def test_nothing_but_models_of_two_libraries_is_imported(library: str, name: str) -> None:
    with pytest.raises(SourceRefusedError):
        find_class(library, name, "transformer")
