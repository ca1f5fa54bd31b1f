"""Tiled decoding: the same tiles where plans are made and where they are executed.

Invariant: a class whose own tiles are smaller keeps them.
"""

from __future__ import annotations

from typing import Any


def use_tiles(vae: Any, side: int) -> None:
    """Turns tiling on, with tiles of at most `side` pixels where the class's own are larger; 0 leaves them.

    AutoencoderKL's own are its training size: 1,024 pixels for FLUX.1, so that no smaller picture is tiled at all.
    """
    vae.enable_tiling()
    own = getattr(vae, "tile_sample_min_size", 0)
    if side and own > side:
        vae.tile_latent_min_size = vae.tile_latent_min_size * side // own
        vae.tile_sample_min_size = side
