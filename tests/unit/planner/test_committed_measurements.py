"""The committed measurements of memory on a GPU against what the planner's arithmetic says today."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.device_memory import saved

ROOT = Path(__file__).resolve().parents[3]
CASES = saved(ROOT / "bench" / "results" / "device_memory.json")
# A VAE is so small that allocation in whole blocks shows.
REST_TOLERANCE, VAE_REST_TOLERANCE, PEAK_TOLERANCE = 0.02, 0.04, 0.10


def test_every_scheme_of_every_measured_model_is_among_them() -> None:
    wanted = {
        f"{model} {scheme}"
        for model in ("flux.1-dev", "z-image", "qwen-image", "wan-14b")
        for scheme in ("bf16", "fp8", "int8", "fp8 storage", "bf16 in groups", "decoding", "encoding")
    }
    assert wanted <= set(CASES)
    assert not [name for name, case in CASES.items() if "failed" in case]


@pytest.mark.parametrize("name", CASES)
def test_bytes_at_rest_and_peaks_are_as_predicted(name: str) -> None:
    case = CASES[name]
    assert case["predicted_peak_bytes"] == pytest.approx(case["peak_bytes"], rel=PEAK_TOLERANCE)
    if case["predicted_rest_bytes"] is not None:
        tolerance = VAE_REST_TOLERANCE if "decoding" in name else REST_TOLERANCE
        assert case["predicted_rest_bytes"] == pytest.approx(case["rest_bytes"], rel=tolerance)
