"""Local models: what lies on this machine, in folders and in the Hub's cache, and whether it is whole.

Reads names, sizes and index files, never weights; knows nothing of devices. Invariant: a folder with `model_index.json`
is one model, and a snapshot that lacks weights of its denoiser is partial, whatever else it has.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from darkroom.knowledge.catalogue import Catalogue
from darkroom.knowledge.detection import Detected, detect, detect_class
from darkroom.knowledge.family import Variant
from darkroom.v1 import model_pb2

WEIGHT_SUFFIXES = (".safetensors", ".gguf", ".bin", ".pt")
INDEX_FILES = ("model_index.json", "modular_model_index.json")
# Loose files that are no denoisers: projectors, importance matrices, what macOS leaves beside files.
IGNORED_PARTS = ("mmproj", "imatrix")
MOST_INDEX_BYTES = 1 << 20


@dataclass(frozen=True)
class LocalModel:
    """One model on this machine."""

    path: Path
    # Repository that the Hub's cache has it from; empty for folders.
    repo_id: str
    # Name in the catalogue; empty where it is not known.
    model: str
    media: model_pb2.MediaKind.ValueType
    size_bytes: int
    # What a load still needs; empty where it is whole.
    missing: tuple[str, ...]
    # Why it is taken for this model, or for none.
    reason: str

    @property
    def is_complete(self) -> bool:
        return not self.missing


def scan(catalogue: Catalogue, folders: Iterable[Path], hub_cache: Path | None = None) -> list[LocalModel]:
    """Returns the models in `folders` and in the Hub's cache, by path.

    Args:
        catalogue: what names mean.
        folders: each is a model itself, or holds models one level down.
        hub_cache: the folder that holds "models--owner--name"; None for none.
    """
    found = [_look(catalogue, path, "") for folder in folders for path in _entries(folder)]
    if hub_cache is not None and hub_cache.is_dir():
        for entry in sorted(hub_cache.glob("models--*")):
            repo_id = entry.name.removeprefix("models--").replace("--", "/")
            found += [_look(catalogue, path, repo_id) for path in sorted(entry.glob("snapshots/*"))[-1:]]
    return [model for model in found if model is not None]


def hub_cache_folder(environment: Mapping[str, str]) -> Path:
    """Returns where the Hub's client keeps what it fetched, by its own variables."""
    home = Path(environment.get("HF_HOME") or "~/.cache/huggingface").expanduser()
    return Path(environment.get("HF_HUB_CACHE") or home / "hub").expanduser()


def _entries(folder: Path) -> Iterator[Path]:
    if not folder.is_dir():
        return
    if _index_of(folder) is not None:
        yield folder
        return
    for path in sorted(folder.iterdir()):
        if path.is_dir() or _is_weights(path):
            yield path


def _look(catalogue: Catalogue, path: Path, repo_id: str) -> LocalModel | None:
    files = list(_files(path))
    weights = [item for item in files if _is_weights(item)]
    if not weights and _index_of(path) is None:
        return None
    detected = _detect(catalogue, path, repo_id or path.name, weights)
    return LocalModel(
        path=path,
        repo_id=repo_id,
        model=detected.variant.name if detected.variant else "",
        media=detected.variant.media if detected.variant else model_pb2.MEDIA_KIND_UNSPECIFIED,
        size_bytes=sum({os.path.realpath(item): item.stat().st_size for item in files}.values()),
        missing=tuple(_missing(path, detected.variant)),
        reason=detected.reason,
    )


def _files(path: Path) -> Iterator[Path]:
    """Yields the files of a model: of a pipeline those of its parts, of another folder all."""
    if path.is_file():
        yield path
        return
    index = _index_of(path)
    parts = [path] if index is None else [path / name for name in index if (path / name).is_dir()]
    for part in parts:
        yield from (item for item in part.rglob("*") if item.is_file())


def _detect(catalogue: Catalogue, path: Path, name: str, weights: list[Path]) -> Detected:
    index = _index_of(path)
    if index is not None:
        return detect_class(catalogue, str(index.get("_class_name", "")), name)
    by_name = detect(catalogue, name)
    if by_name.variant is None and len(weights) == 1:
        return detect(catalogue, weights[0].name)
    return by_name


def _missing(path: Path, variant: Variant | None) -> Iterator[str]:
    """Yields what a load would still need of a pipeline folder."""
    index = _index_of(path) if path.is_dir() else None
    if index is None or variant is None:
        return
    for name in variant.components:
        entry = index.get(name)
        if not isinstance(entry, list) or entry[:1] == [None]:
            continue  # the repository does not list it; it comes from elsewhere
        part = path / name
        present = {item.name for item in part.glob("*") if item.exists()} if part.is_dir() else set()
        shards = _shards(part)
        if not (shards or any(_is_weights(part / item) for item in present)):
            yield f"{name}: no weights"
        yield from (f"{name}/{shard}" for shard in sorted(shards - present))


def _shards(part: Path) -> set[str]:
    shards: set[str] = set()
    for index in part.glob("*.safetensors.index.json"):
        shards |= set(_read(index).get("weight_map", {}).values())
    return shards


def _is_weights(path: Path) -> bool:
    name = path.name.casefold()
    is_ignored = name.startswith("._") or any(part in name for part in IGNORED_PARTS)
    return name.endswith(WEIGHT_SUFFIXES) and not is_ignored


def _index_of(path: Path) -> dict[str, Any] | None:
    for name in INDEX_FILES:
        if (path / name).is_file() and (path / name).stat().st_size <= MOST_INDEX_BYTES:
            return _read(path / name)
    return None


def _read(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
