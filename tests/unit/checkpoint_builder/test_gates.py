"""What the gates measure and how they decide: figures against their definitions, verdicts against thresholds."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn import functional

from darkroom.artifacts.gates import read_gates
from darkroom.knowledge import load_catalogue
from darkroom.knowledge.gates import EVERYBODY, judgement, with_noise
from darkroom.v1 import checkpoint_pb2, device_pb2
from services.checkpoint_builder.gates.figures import MOST_PSNR_DB, mean_luma, pixels_of, psnr_db, ssim
from services.checkpoint_builder.gates.judging import checks_of, verdicts_of
from services.checkpoint_builder.gates.perceptual import CONVOLUTIONS, PLACES, Lpips
from services.checkpoint_builder.gates.pictures import Pair
from services.checkpoint_builder.gates.report import to_gates, to_report
from services.checkpoint_builder.gates.sheet import Heading, draw_sheet

CATALOGUE = load_catalogue()
SCHEMES = (
    device_pb2.SCHEME_FP8,
    device_pb2.SCHEME_INT8,
    device_pb2.SCHEME_MXFP8,
    device_pb2.SCHEME_NVFP4,
    device_pb2.SCHEME_FP8_STORAGE,
)


def noise(seed: int, side: int = 48) -> np.ndarray:
    return np.random.default_rng(seed).random((side, side, 3))


def png(pixels_HWC: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray((pixels_HWC * 255).astype(np.uint8)).save(buffer, "PNG")
    return buffer.getvalue()


def test_a_picture_is_as_alike_to_itself_as_can_be() -> None:
    picture = noise(0)
    assert ssim(picture, picture) == pytest.approx(1.0)
    assert psnr_db(picture, picture) == MOST_PSNR_DB


def test_ssim_is_the_formula_at_every_place_of_the_window() -> None:
    first, second = noise(0, 14), 0.7 * noise(0, 14) + 0.3 * noise(1, 14)
    luma = np.array([0.2126, 0.7152, 0.0722])
    places = np.arange(11) - 5
    window = np.outer(*[np.exp(-(places**2) / 4.5)] * 2)
    window /= window.sum()
    values = []
    for row in range(4):
        for column in range(4):
            one = (first @ luma)[row : row + 11, column : column + 11]
            two = (second @ luma)[row : row + 11, column : column + 11]
            mean_1, mean_2 = (window * one).sum(), (window * two).sum()
            variance_1 = (window * (one - mean_1) ** 2).sum()
            variance_2 = (window * (two - mean_2) ** 2).sum()
            covariance = (window * (one - mean_1) * (two - mean_2)).sum()
            luminance = (2 * mean_1 * mean_2 + 1e-4) / (mean_1**2 + mean_2**2 + 1e-4)
            values.append(luminance * (2 * covariance + 9e-4) / (variance_1 + variance_2 + 9e-4))
    assert ssim(first, second) == pytest.approx(np.mean(values), abs=1e-9)
    assert ssim(first, noise(2, 14)) < 0.3


def test_psnr_is_twenty_decibels_where_every_number_is_off_by_a_tenth() -> None:
    assert psnr_db(np.full((20, 20, 3), 0.5), np.full((20, 20, 3), 0.6)) == pytest.approx(20.0)


def test_luma_weighs_green_most() -> None:
    values = [mean_luma(pixels_of(png(np.eye(3)[channel] * np.ones((12, 12, 3))))) for channel in range(3)]
    assert values == pytest.approx([0.2126, 0.7152, 0.0722])


def test_lpips_is_the_weighted_distance_of_normed_features() -> None:
    generator = torch.Generator().manual_seed(0)
    weights = {}
    for place, (inside, outside, kernel, _, _) in zip(PLACES, CONVOLUTIONS, strict=True):
        weights[f"features.{place}.weight"] = 0.05 * torch.randn(outside, inside, kernel, kernel, generator=generator)
        weights[f"features.{place}.bias"] = 0.05 * torch.randn(outside, generator=generator)
    for place, (_, outside, *_) in enumerate(CONVOLUTIONS):
        weights[f"lin{place}.model.1.weight"] = torch.rand(1, outside, 1, 1, generator=generator)
    pictures = torch.rand(2, 1, 3, 64, 64, generator=generator) * 2 - 1
    shift, scale = torch.tensor([-0.030, -0.088, -0.188]), torch.tensor([0.458, 0.448, 0.450])
    features = []
    for picture in pictures:
        values = (picture - shift.view(1, 3, 1, 1)) / scale.view(1, 3, 1, 1)
        own = []
        for place, (_, _, _, stride, padding) in enumerate(CONVOLUTIONS):
            if place in (1, 2):
                values = functional.max_pool2d(values, 3, 2)
            kernel, bias = (weights[f"features.{PLACES[place]}.{name}"] for name in ("weight", "bias"))
            values = functional.conv2d(values, kernel, bias, stride, padding).relu()
            own.append(values / values.pow(2).sum(1, keepdim=True).sqrt().clamp(min=1e-10))
        features.append(own)
    expected = sum(
        float(((one - two) ** 2 * weights[f"lin{place}.model.1.weight"]).sum(1).mean())
        for place, (one, two) in enumerate(zip(*features, strict=True))
    )
    with torch.inference_mode():
        network = Lpips(weights)
        assert float(network(pictures[0], pictures[1])) == pytest.approx(expected, rel=1e-4)
        assert float(network(pictures[0], pictures[0])) == 0.0


def pair(**figures: float) -> checkpoint_pb2.GatePair:
    told = {"ssim": 0.99, "psnr_db": 40.0, "dense_luma": 0.5, "luma": 0.5, "rerun_ssim": 1.0} | figures
    return checkpoint_pb2.GatePair(prompt="a cat", **told)


@pytest.mark.parametrize(
    ("pairs", "failed"),
    [
        ([pair()], set()),
        ([pair(), pair(ssim=0.5)], {"ssim_mean", "ssim_worst"}),
        ([pair(ssim=0.97), pair(luma=0.0)], {"black", "luma_shift"}),
        ([pair(luma=0.0, dense_luma=0.0)], set()),
        ([pair(ssim=-1.0)], {"ssim_mean", "ssim_worst"}),
        ([pair(lpips=0.5)], {"lpips_mean", "lpips_worst"}),
        ([pair(clip_drop=0.1)], {"clip_drop_mean"}),
    ],
)
def test_a_pair_that_broke_fails_the_check_that_it_breaks(
    pairs: list[checkpoint_pb2.GatePair], failed: set[str]
) -> None:
    limits = judgement(CATALOGUE.gates, ("emoji", "flux.1"), device_pb2.SCHEME_INT8).limits
    assert {check.name for check in checks_of(pairs, limits) if not check.has_passed} == failed


def test_no_limit_is_stricter_than_two_runs_of_the_dense_model() -> None:
    limits = judgement(CATALOGUE.gates, ("emoji", "flux.1"), device_pb2.SCHEME_INT8).limits
    assert with_noise(limits, 1.0) == limits
    loosened = with_noise(limits, 0.8)
    assert (loosened.least_ssim, loosened.least_mean_ssim) == (0.8, 0.8)


def test_every_model_has_limits_in_every_scheme_and_names_are_of_models() -> None:
    known = {EVERYBODY} | {name for variant in CATALOGUE for name in (variant.name, variant.family)}
    assert set(CATALOGUE.gates) <= known
    for variant in CATALOGUE:
        for scheme in SCHEMES:
            rules = judgement(CATALOGUE.gates, (variant.name, variant.family), scheme)
            assert rules.num_pairs > 0
            assert len(set(rules.prompts)) >= 8
            assert 0 < rules.limits.least_ssim <= rules.limits.least_mean_ssim < 1


def test_a_verdict_comes_back_from_its_file_as_it_was() -> None:
    report = checkpoint_pb2.GateReport(checkpoint_id="0" * 64, has_passed=True, device="a device")
    report.checks.add(name="load", has_passed=True, measured="loads", wanted="loads")
    report.pairs.append(pair(lpips=0.25))
    report.not_run.append("clip: no weights")
    gates = read_gates(to_gates(report).data)
    assert gates.is_passed
    assert to_report(gates) == report
    report.checks.add(name="black", measured="1 of 1", wanted="none")
    assert not to_gates(report).is_passed


@pytest.mark.parametrize("num_pairs", [1, 3, 5])
def test_a_sheet_shows_every_pair_side_by_side(num_pairs: int, tmp_path: Path) -> None:
    red, blue = np.zeros((40, 60, 3)), np.zeros((40, 60, 3))
    red[..., 0], blue[..., 2] = 1.0, 1.0
    pairs = [Pair(f"a prompt {place}", place, png(red), png(blue) if place != 1 else b"") for place in range(num_pairs)]
    heading = Heading("Model-FP8", "transformer of a model", num_pairs != 3, "SSIM 0.9 mean")
    draw_sheet(heading, pairs, [pair()] * (num_pairs - 1), tmp_path / "sheet.png")
    with Image.open(tmp_path / "sheet.png") as sheet:
        pixels = np.asarray(sheet)
    is_red, is_blue = [(pixels == colour).all(axis=2).sum() for colour in ((255, 0, 0), (0, 0, 255))]
    # Pictures of 60 by 40 are shown 256 wide.
    area = 256 * 171
    assert is_red == num_pairs * area
    assert is_blue == (num_pairs - (num_pairs > 1)) * area


@pytest.mark.parametrize(("own", "together", "passing"), [(True, True, 2), (False, True, 0), (True, False, 0)])
def test_experts_pass_together_or_not_at_all(own: bool, together: bool, passing: int) -> None:
    told = {name: checkpoint_pb2.GateReport() for name in ("transformer", "transformer_2")}
    told["transformer"].checks.add(name="bit_identity", has_passed=True)
    told["transformer_2"].checks.add(name="bit_identity", has_passed=own)
    shared = checkpoint_pb2.GateReport(device="a device")
    shared.checks.add(name="load", has_passed=together)
    verdicts = verdicts_of({"transformer": "1" * 64, "transformer_2": "2" * 64}, told, shared)
    assert sum(gates.is_passed for gates in verdicts.values()) == passing
    assert [gates.artifact for gates in verdicts.values()] == ["1" * 64, "2" * 64]
