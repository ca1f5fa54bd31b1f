"""What a checkpoint folder says of itself before anything is loaded: headers only, no tensors, no torch.

Invariant: a folder that passes has a model_index.json, and every weight file in it is a whole safetensors file.
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

from darkroom.rpc.errors import CorruptCheckpointError, SourceRefusedError
from services.worker.tensor_headers import read_safetensors

PICKLED_SUFFIXES = frozenset({".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle"})


def check_pipeline_folder(folder: Path, component_names: list[str], pipeline_class: str = "") -> int:
    """Returns the bytes of all weight files.

    Args:
        folder: holds model_index.json.
        component_names: attributes whose weights must be there.
        pipeline_class: what the index must name; empty accepts any.

    Raises:
        SourceRefusedError: the folder, its index or a component's weights are missing, or weights are pickled only.
        CorruptCheckpointError: the index or a weight file is broken.
    """
    index = read_json(folder / "model_index.json", missing=f"{folder.name} is no pipeline folder")
    found = index.get("_class_name", pipeline_class)
    if pipeline_class and found != pipeline_class:
        raise SourceRefusedError(f"{folder.name} holds a {found}, where the plan expects a {pipeline_class}")
    total = 0
    for name in component_names:
        if name not in index:
            raise SourceRefusedError(f"the plan names a component {name!r} that {folder.name}/model_index.json lacks")
        total += check_component_folder(folder / name)
    return total


def check_skeleton_folder(folder: Path, component_names: list[str]) -> None:
    """Checks a pipeline folder that has configurations and no weights. Raises as `check_pipeline_folder`."""
    read_json(folder / "model_index.json", missing=f"{folder.name} is no pipeline folder")
    for name in component_names:
        read_json(folder / name / "config.json", missing=f"the plan names a component {name!r}")


def check_component_folder(folder: Path) -> int:
    """Returns the bytes of a component's weight files. Raises as `check_pipeline_folder`."""
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        pickled = sorted(path.name for path in folder.glob("*") if path.suffix in PICKLED_SUFFIXES)
        problem = f"only pickled weights ({', '.join(pickled)}), which are never loaded" if pickled else "no weights"
        raise SourceRefusedError(f"{folder.name} holds {problem}; expected *.safetensors")
    for listing in folder.glob("*.safetensors.index.json"):
        shards = set(read_json(listing, missing="").get("weight_map", {}).values())
        if missing := sorted(shards - {path.name for path in files}):
            raise CorruptCheckpointError(f"{folder.name} lacks {len(missing)} of {len(shards)} shards: {missing[0]}…")
    for path in files:
        read_safetensors(path)
    return sum(path.stat().st_size for path in files)


def read_json(path: Path, missing: str) -> dict[str, Any]:
    """Returns a JSON object from disk.

    Raises:
        SourceRefusedError: there is no such file.
        CorruptCheckpointError: it holds no JSON object.
    """
    try:
        content = json.loads(path.read_text())
    except FileNotFoundError as absent:
        raise SourceRefusedError(f"{missing}: it has no {path.name}") from absent
    except (ValueError, OSError) as garbage:
        raise CorruptCheckpointError(f"{path.parent.name}/{path.name} can't be read as JSON") from garbage
    if not isinstance(content, dict):
        raise CorruptCheckpointError(f"{path.parent.name}/{path.name} holds no JSON object")
    return content


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Writes a JSON object whole or not at all, making its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=path.name, delete=False) as file:
        json.dump(content, file, indent=1, sort_keys=True)
    os.replace(file.name, path)
