"""The catalogue as its callers use it."""

from pathlib import Path

import pytest

from darkroom.knowledge import load_catalogue
from darkroom.rpc.errors import InvalidCatalogueError, UnknownModelError
from darkroom.v1 import checkpoint_pb2


@pytest.fixture(scope="module")
def catalogue():
    return load_catalogue()


def test_an_alias_finds_the_model_whatever_its_case(catalogue):
    assert catalogue.find("Black-Forest-Labs/FLUX.1-DEV").name == "flux.1-dev"


def test_an_unknown_name_is_answered_with_close_ones(catalogue):
    with pytest.raises(UnknownModelError, match=r"flux\.1-dev"):
        catalogue.find("flux.1-dv")


def test_the_bundled_model_brings_its_own_size_and_tokens(catalogue):
    model = catalogue.message("emoji")
    assert (model.defaults.width, model.defaults.height, model.limits.max_prompt_tokens) == (128, 128, 32)
    assert model.source == "bundled:emoji"
    source = catalogue.source("emoji")
    assert (source.kind, source.bundled) == (checkpoint_pb2.CHECKPOINT_KIND_DENSE, "emoji")


def test_the_same_files_give_the_same_digest(catalogue):
    assert load_catalogue().digest == catalogue.digest


def test_an_operators_file_overrides_one_figure_and_leaves_the_rest(catalogue, tmp_path: Path):
    (tmp_path / "mine.toml").write_text('[family]\nname = "flux.1"\n[variants."flux.1-dev".defaults]\nsteps = 20\n')
    mine = load_catalogue([tmp_path])
    assert mine.find("flux.1-dev").defaults.steps == 20
    assert mine.find("flux.1-dev").defaults.guidance == catalogue.find("flux.1-dev").defaults.guidance
    assert mine.digest != catalogue.digest


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('[family]\nname = "flux.1"\ndefaults = { widht = 1 }', r"defaults\.widht = 1: should be .*did you mean width"),
        ('[family]\nname = "flux.1"\nmedia = "music"', r"media = 'music': should be one of image, video"),
        (
            '[family]\nname = "flux.1"\ndefaults = { width = "big" }',
            r"defaults\.width = 'big': should be a whole number",
        ),
        ('[family]\nname = "new"\n[variants.new]', r"variants\.\"new\"\.media = None: should be given"),
        ("[famly]", r"famly = .*did you mean family"),
        ("no toml", r"mine\.toml"),
    ],
)
def test_a_wrong_file_is_refused_with_file_key_value_and_the_right_one(text, expected, tmp_path: Path):
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(InvalidCatalogueError, match=expected) as refused:
        load_catalogue([path])
    assert "mine.toml" in refused.value.message
