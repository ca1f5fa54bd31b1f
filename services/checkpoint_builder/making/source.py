"""Where a part's dense weights really are: folders and files on this machine, fetched where they must be.

Trust was checked before the process began. Knows nothing of tensors. Invariant: nothing pickled is fetched.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import huggingface_hub
from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, LocalEntryNotFoundError, RepositoryNotFoundError
from tqdm.auto import tqdm  # type: ignore[import-untyped]

from darkroom.modeling.dense import find_class
from darkroom.rpc.errors import CorruptCheckpointError, SourceRefusedError
from darkroom.v1 import checkpoint_pb2
from services.checkpoint_builder.config import BuilderSettings
from services.checkpoint_builder.order import Part, Task

SINGLE_FILE = checkpoint_pb2.CHECKPOINT_KIND_SINGLE_FILE
# Told of bytes fetched and to fetch.
OnBytes = Callable[[int, int], None]


@dataclass(frozen=True)
class DenseSource:
    """A component on this machine."""

    # Class of diffusers or transformers.
    kind: Any
    library: str
    # Holds config.json and, but for a single file, the weights.
    folder: Path
    # The single file; its configuration is in `pipeline_folder`/NAME.
    file: Path | None
    pipeline_folder: Path
    # For the manifest: no path, and no host.
    origin: str
    revision: str


def find_source(task: Task, part: Part, settings: BuilderSettings, on_bytes: OnBytes) -> DenseSource:
    """Returns where a part's weights are, fetching what is missing.

    Raises:
        SourceRefusedError: something is missing, gated, or of a class that the libraries don't have.
        CorruptCheckpointError: the pipeline's index is broken.
    """
    if part.source.kind == SINGLE_FILE:
        return _single_file(task, part, settings, on_bytes)
    root, revision = _folder(part.source, [part.name] if not part.is_apart else [""], settings, on_bytes)
    folder = _component_folder(root, part)
    return _described(part, folder, root, None, part.source, revision)


def _single_file(task: Task, part: Part, settings: BuilderSettings, on_bytes: OnBytes) -> DenseSource:
    """One file, and the configuration that the model's own pipeline has for it."""
    skeletons, _ = _folder(task.variant.source, [], settings, on_bytes, configs_of=part.name)
    place, revision = part.source.WhichOneof("location"), ""
    if place == "path":
        file = Path(part.source.path)
        file = file / part.source.file if part.source.file else file
    else:
        file, revision = _fetch(part.source, [part.source.file], on_bytes)
        file = file / part.source.file
    if not file.is_file():
        raise SourceRefusedError(f"there is no file {file.name!r} at the source")
    return _described(part, skeletons / part.name, skeletons, file, part.source, revision)


def _described(
    part: Part,
    folder: Path,
    root: Path,
    file: Path | None,
    source: checkpoint_pb2.CheckpointSource,
    revision: str,
) -> DenseSource:
    if not (folder / "config.json").is_file():
        raise SourceRefusedError(f"{folder.name} has no config.json: it is no component of diffusers or transformers")
    library, class_name = _class_name(root, part)
    place = source.WhichOneof("location")
    origin = {"repo_id": source.repo_id, "bundled": f"bundled:{source.bundled}"}.get(place or "", "local")
    return DenseSource(
        find_class(library, class_name, part.name), library, folder, file, root, origin, revision or source.revision
    )


def _class_name(root: Path, part: Part) -> tuple[str, str]:
    """The class by the pipeline's own index, or by the catalogue where there is none."""
    index = root / "model_index.json"
    if index.is_file():
        try:
            named = json.loads(index.read_text()).get(part.name)
        except (ValueError, AttributeError) as garbage:
            raise CorruptCheckpointError("model_index.json can't be read as JSON") from garbage
        if isinstance(named, list) and len(named) == 2 and all(isinstance(item, str) for item in named):
            return named[0], named[1]
    library, _, class_name = part.architecture.class_name.partition(":")
    return library, class_name


def _component_folder(root: Path, part: Part) -> Path:
    """A pipeline's folder has the component below it; a component's own folder is it."""
    if part.source.subfolder:
        return root / part.source.subfolder
    if part.is_apart or not (root / part.name).is_dir():
        return root
    return root / part.name


def _folder(
    source: checkpoint_pb2.CheckpointSource,
    names: list[str],
    settings: BuilderSettings,
    on_bytes: OnBytes,
    configs_of: str = "",
) -> tuple[Path, str]:
    """Returns (folder, revision) of a source. Fetched are the weights of the components named, and configurations."""
    place = source.WhichOneof("location")
    if place == "bundled":
        folder = settings.models_dir / source.bundled
    elif place == "path":
        folder = Path(source.path)
    elif place == "repo_id":
        inside = [f"{source.subfolder or name}/" if source.subfolder or name else "" for name in names]
        patterns = [f"{prefix}{end}" for prefix in inside for end in ("*.safetensors", "*.json")]
        patterns += [f"{configs_of}/config.json"] if configs_of else []
        return _fetch(source, ["model_index.json", *patterns], on_bytes)
    else:
        raise SourceRefusedError("the source names no location")
    if not folder.is_dir():
        raise SourceRefusedError(f"there is no model folder {folder.name!r} on the builder's machine")
    return folder, ""


def _fetch(source: checkpoint_pb2.CheckpointSource, patterns: list[str], on_bytes: OnBytes) -> tuple[Path, str]:
    """Returns (folder, commit) of a snapshot that has the files of these patterns."""
    wanted: dict[str, Any] = {
        "repo_id": source.repo_id,
        "revision": source.revision or None,
        "allow_patterns": patterns,
    }
    try:
        folder = Path(huggingface_hub.snapshot_download(tqdm_class=_bar_class(on_bytes), **wanted))
    except GatedRepoError as gated:
        raise SourceRefusedError(f"{source.repo_id} is gated: accept its licence and set HF_TOKEN") from gated
    except (RepositoryNotFoundError, LocalEntryNotFoundError, HfHubHTTPError, OSError) as absent:
        raise SourceRefusedError(f"{source.repo_id} can't be fetched ({type(absent).__name__})") from absent
    return folder, os.path.basename(folder)


def _bar_class(on_bytes: OnBytes) -> type:
    """A tqdm class for `snapshot_download` that draws nothing and tells bytes."""

    class Bar(tqdm):  # type: ignore[misc]
        def __init__(self, *args: Any, **options: Any) -> None:
            self._is_bytes = options.get("unit") == "B"
            options.pop("name", None)
            super().__init__(*args, **{**options, "disable": True})

        def update(self, n: float | None = 1) -> None:
            self.n += n or 0
            if self._is_bytes:
                on_bytes(int(self.n), int(self.total or 0))

    return Bar
