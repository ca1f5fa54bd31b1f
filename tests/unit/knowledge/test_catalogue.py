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
        (
            '[family]\nname = "flux.1"\ndefaults = { widht = 1 }',
            "family.defaults.widht = 1: should be left out; did you mean width?",
        ),
        ('[family]\nname = "flux.1"\nmedia = "music"', "family.media = 'music': should be one of image, video"),
        (
            '[family]\nname = "flux.1"\n[variants."flux.1-dev".defaults]\nwidth = "big"',
            "variants.\"flux.1-dev\".defaults.width = 'big': should be a whole number",
        ),
        ('[family]\nname = "new"\n[variants.new]', "variants.new.media missing: should be given"),
        ("[weights.mine]\nparameters = -1", "weights.mine.parameters = -1: should be a number of at least 0"),
        (
            '[family]\nname = "flux.1"\n[family.components.vae]\narchitecture = "flux.1-vea"',
            "family.components.vae.architecture = 'flux.1-vea': should be one with weights, like flux.1-vae",
        ),
        ('[family]\nname = "flux.1"\n[variants.emoji]\naliases = ["FLUX.1-dev"]', "should be left out: "),
        (
            '[family]\nname = "flux.1"\n[variants."flux.1-dev".components.transformer]\nrole = "vae"',
            "should be such that one has the role denoiser",
        ),
        ("[famly]", "famly = {}: should be left out; did you mean family?"),
        ("no toml", "mine.toml"),
    ],
)
def test_a_wrong_file_is_refused_with_file_key_value_and_the_right_one(text, expected, tmp_path: Path):
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(InvalidCatalogueError) as refused:
        load_catalogue([path])
    assert expected in refused.value.message
    assert "mine.toml" in refused.value.message


def test_a_mistake_in_one_file_is_not_blamed_on_the_last_one(tmp_path: Path):
    (tmp_path / "a.toml").write_text("[weights.mine]\nparameters = -1\n")
    (tmp_path / "b.toml").write_text("[weights.yours]\nparameters = 1\n")
    with pytest.raises(InvalidCatalogueError, match=r"a\.toml: weights\.mine"):
        load_catalogue([tmp_path])


def test_only_repositories_that_the_catalogue_names_are_trusted(catalogue):
    for repo_id in ("black-forest-labs/flux.1-dev", "unsloth/FLUX.1-dev-FP8", "unsloth/Meta-Llama-3.1-8B-Instruct"):
        assert catalogue.is_trusted(repo_id)
    assert not catalogue.is_trusted("someone/FLUX.1-dev")


def test_variants_have_their_own_defaults(catalogue):
    steps = {variant.name: (variant.defaults.steps, variant.defaults.guidance) for variant in catalogue}
    assert steps["flux.1-schnell"] == (4, 0.0)
    assert steps["flux.1-krea-dev"] == (28, 4.5)
    assert steps["flux.2-klein-base-9b"] == (50, 4.0)
    assert steps["z-image-turbo"] == (9, 0.0)
    assert steps["krea-2-raw"] == (52, 3.5)
    assert steps["hidream-i1-fast"] == (16, 0.0)
    assert steps["ltx-2.3-distilled"] == (8, 1.0)
    assert steps["wan2.2-i2v-a14b"] == (40, 3.5)
    assert {variant.family for variant in catalogue} >= {
        "flux.1", "flux.1-kontext", "flux.2-klein", "flux.2-dev", "qwen-image", "qwen-image-edit", "z-image", "krea-2",
        "lumina-2", "hunyuanimage-2.1", "hidream-i1", "ltx-2", "wan2.2", "hunyuanvideo-1.5",
    }  # fmt: skip


def test_defaults_lie_on_each_models_own_lattice(catalogue):
    for variant in catalogue:
        limits, defaults = variant.limits, variant.defaults
        for size in [defaults, *variant.sizes]:
            assert size.width % limits.side_multiple == size.height % limits.side_multiple == 0, variant.name
            assert limits.min_side <= min(size.width, size.height), variant.name
            assert max(size.width, size.height) <= limits.max_side, variant.name
        assert 1 <= defaults.steps <= limits.max_steps
        assert 0 <= defaults.guidance <= limits.max_guidance
        if limits.frame_multiple:
            assert defaults.num_frames % limits.frame_multiple == limits.frame_offset % limits.frame_multiple


NEW_FAMILY = """
[family]
name = "house-style"
media = "image"
pipeline_class = "FluxPipeline"
license = "Apache-2.0"
summary = "Ours."
source = { path = "/srv/models/house" }
defaults = { width = 512, height = 512, steps = 10, guidance = 2.0 }
limits = { min_side = 64, max_side = 1024, side_multiple = 16, max_steps = 50, max_guidance = 10.0 }
call = { guidance_argument = "guidance_scale" }
[family.components]
transformer = { role = "denoiser", architecture = "house-dit" }
vae = { role = "vae", architecture = "flux.1-vae" }
[variants.house-style]
[architectures.house-dit]
class_name = "diffusers:FluxTransformer2DModel"
source = "our own config.json"
is_estimate = true
[weights.house-dit]
parameters = 1000000000
"""


def test_adding_a_family_is_adding_a_file(catalogue, tmp_path: Path):
    (tmp_path / "house.toml").write_text(NEW_FAMILY)
    mine = load_catalogue([tmp_path])
    assert mine.message("house-style").source == "/srv/models/house"
    assert mine.source("house-style").path == "/srv/models/house"
    assert len(list(mine)) == len(list(catalogue)) + 1
