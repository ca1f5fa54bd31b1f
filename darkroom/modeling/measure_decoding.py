"""Measures what decoding holds beside weights, for every VAE of the catalogue, and writes `decoding.toml`.

    python -m darkroom.modeling.measure_decoding    # some minutes: tiles of long clips

Decodes at small sizes on the meta device, whole and in tiles, and solves for what grows with pixels and with frames:
the same code that runs on a GPU, so the tiles are the class's own. Knows nothing of devices.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from darkroom.knowledge import load_catalogue
from darkroom.modeling.live_memory import peak_live_bytes
from darkroom.modeling.skeleton import build_skeleton
from darkroom.modeling.tiles import use_tiles

DECODING_FILE = Path(__file__).parents[1] / "knowledge" / "decoding.toml"
HEADER = """# What decoding holds beside weights, in live bytes at two bytes a number.
# Written by `python -m darkroom.modeling.measure_decoding`: small decodes on the meta device. Do not edit.
# Kernels add to it, since cuDNN copies into its own layout: kernel_factor, measured on an H200 (torch 2.11, cuDNN 9.19,
# eager; bench/results/device_memory.md). FLUX's VAE at 1,024 pixels in bfloat16: 2.55 GB where 1.61 are alive, in tiles
# 0.65 where 0.40 are; Qwen-Image's 4.44 where 3.63 are; Wan 2.1's at 832 x 480 in float32 9.17 where 8.25 are.
# VAEs that nobody measured take the largest.
"""
# Side of a tile that a plan asks for of classes without tiles of their own below a megapixel.
TILE_SIDE = 512


@dataclass(frozen=True)
class Geometry:
    """The latents of a VAE."""

    channels: int
    # Pixels along a latent's side.
    side: int
    # Frames that a latent spans; 0 without an axis for frames.
    frames: int
    # Lengths to measure at; pictures are one frame.
    lengths: tuple[int, int] = (1, 1)
    # What kernels were measured to take for each byte that is alive.
    kernel_factor: float = 1.6


GEOMETRIES = {
    "flux.1-vae": Geometry(16, 8, 0),
    "emoji-vae": Geometry(16, 8, 0),
    "flux.2-vae": Geometry(32, 8, 0),
    "hunyuanimage-vae": Geometry(64, 32, 0),
    "qwen-image-vae": Geometry(16, 8, 4, kernel_factor=1.23),
    "wan2.1-vae": Geometry(16, 8, 4, (9, 25), kernel_factor=1.1),
    "wan2.2-vae": Geometry(48, 16, 4, (9, 25)),
    "hunyuanvideo-1.5-vae": Geometry(32, 16, 4, (9, 25)),
    "ltx-2-vae": Geometry(128, 32, 8, (9, 25)),
    "ltx-2.3-vae": Geometry(128, 32, 8, (9, 25)),
}


def decode_bytes(vae: Any, geometry: Geometry, side: int, num_frames: int) -> int:
    """Returns the peak of live bytes of decoding one square picture or clip."""
    shape = [1, geometry.channels, side // geometry.side, side // geometry.side]
    if geometry.frames:
        shape.insert(2, (num_frames - 1) // geometry.frames + 1)
    latents = torch.empty(shape, device="meta", dtype=torch.bfloat16)
    return peak_live_bytes(vae, lambda: vae.decode(latents, return_dict=False)[0])


def measure(vae: Any, geometry: Geometry) -> dict[str, float]:
    """Returns the figures of one VAE: whole and tiled decoding, each as a line over frames."""
    few, many = geometry.lengths
    pixels = 512 * 512
    whole = [decode_bytes(vae, geometry, 512, frames) for frames in (few, many)]
    use_tiles(vae, TILE_SIDE)
    tiled = [decode_bytes(vae, geometry, 1024, frames) for frames in (few, many)]
    tile = [decode_bytes(vae, geometry, 512, frames) for frames in (few, many)]
    slope, base = _line(few, many, whole)
    tile_slope, tile_base = _line(few, many, tile)
    grown = [(large - small) / (1024 * 1024 - pixels) for large, small in zip(tiled, tile, strict=True)]
    grown_slope, grown_base = _line(few, many, grown)
    return {
        "bytes_per_pixel": base / pixels,
        "bytes_per_pixel_frame": slope / pixels,
        "tile_bytes": tile_base - grown_base * pixels,
        "tile_bytes_per_frame": tile_slope - grown_slope * pixels,
        "tiled_bytes_per_pixel": grown_base,
        "tiled_bytes_per_pixel_frame": grown_slope,
    }


def _line(few: int, many: int, values: list[int] | list[float]) -> tuple[float, float]:
    if few == many:
        return 0.0, float(values[0])
    slope = (values[1] - values[0]) / (many - few)
    return slope, values[0] - slope * few


def main() -> None:
    """Measures all and writes the file."""
    catalogue, lines = load_catalogue(), [HEADER]
    for name, geometry in GEOMETRIES.items():
        vae = build_skeleton(catalogue.architectures[name]).to(torch.bfloat16)
        figures = measure(vae, geometry)
        print(name, figures, file=sys.stderr)
        lines += [f'[decoding."{name}"]', *(f"{key} = {value:.1f}" for key, value in figures.items())]
        lines += [f"kernel_factor = {geometry.kernel_factor}", ""]
    DECODING_FILE.write_text("\n".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
