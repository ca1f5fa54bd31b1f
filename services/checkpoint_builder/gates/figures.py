"""How alike two pictures are: structural similarity, signal to noise, luma.

Letters: H rows, W columns, C the channels red, green, blue. Values are 0 to 1, float64. Knows nothing of models.
Invariant: a picture is as alike to itself as can be: SSIM 1, PSNR at its ceiling.
"""

from __future__ import annotations

import io
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from PIL import Image

Pixels: TypeAlias = NDArray[np.float64]
# Equal pictures have no noise; this stands for infinity.
MOST_PSNR_DB = 100.0
# Window, deviation and constants of Wang et al., "Image quality assessment: from error visibility to structural
# similarity", IEEE TIP 13(4), 2004.
WINDOW, DEVIATION = 11, 1.5
K1, K2 = 0.01, 0.03
# ITU-R BT.709.
LUMA = np.array([0.2126, 0.7152, 0.0722])


def pixels_of(data: bytes) -> Pixels:
    """Returns the pixels, HWC, of an image file."""
    with Image.open(io.BytesIO(data)) as picture:
        return np.asarray(picture.convert("RGB"), dtype=np.float64) / 255.0


def luma(pixels_HWC: Pixels) -> Pixels:
    """Returns the luma, HW."""
    values: Pixels = pixels_HWC @ LUMA
    return values


def mean_luma(pixels_HWC: Pixels) -> float:
    """Returns the mean luma, 0 for black, 1 for white."""
    return float(luma(pixels_HWC).mean())


def psnr_db(first_HWC: Pixels, second_HWC: Pixels) -> float:
    """Returns the peak signal to noise in dB, at most MOST_PSNR_DB."""
    error = float(np.mean((first_HWC - second_HWC) ** 2))
    return MOST_PSNR_DB if error <= 0 else min(MOST_PSNR_DB, float(-10 * np.log10(error)))


def ssim(first_HWC: Pixels, second_HWC: Pixels) -> float:
    """Returns the mean structural similarity of the lumas: 1 for the same picture, 0 for nothing in common."""
    first, second = luma(first_HWC), luma(second_HWC)
    mean_1, mean_2 = _blur(first), _blur(second)
    variance_1 = _blur(first * first) - mean_1**2
    variance_2 = _blur(second * second) - mean_2**2
    covariance = _blur(first * second) - mean_1 * mean_2
    luminance = (2 * mean_1 * mean_2 + K1**2) / (mean_1**2 + mean_2**2 + K1**2)
    structure = (2 * covariance + K2**2) / (variance_1 + variance_2 + K2**2)
    return float(np.mean(luminance * structure))


def _blur(values_HW: Pixels) -> Pixels:
    """A Gaussian window at every place where it fits whole."""
    places = np.arange(WINDOW) - WINDOW // 2
    weights = np.exp(-(places**2) / (2 * DEVIATION**2))
    weights /= weights.sum()
    rows = np.lib.stride_tricks.sliding_window_view(values_HW, WINDOW, axis=0) @ weights
    result: Pixels = np.lib.stride_tricks.sliding_window_view(rows, WINDOW, axis=1) @ weights
    return result
