"""Checkpoints of a training run: written whole or not at all.

Does not know what is inside. Invariant: a reader never sees half a file (write aside, then rename),
so a run that is killed at any moment continues from its last complete checkpoint.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch


def save_checkpoint(path: Path, state: dict[str, Any]) -> None:
    """Write `state` with torch.save, atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_suffix(".partial")
    torch.save(state, aside)
    aside.replace(path)


def load_checkpoint(path: Path, device: torch.device) -> dict[str, Any] | None:
    """The state, or None if this run has no checkpoint yet."""
    if not path.exists():
        return None
    state: dict[str, Any] = torch.load(path, map_location=device, weights_only=True)
    return state
