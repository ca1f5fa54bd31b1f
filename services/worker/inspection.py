"""What only this machine can tell of a model: is it here, how many bytes, how much disk is free.

Reads the catalogue's sources and the disk; touches no device and opens no connection. Invariant: an answer, never a
guess: `is_present` is true only if a load needs no download.
"""

from __future__ import annotations

import functools
import shutil
from pathlib import Path

import huggingface_hub.constants

from darkroom.knowledge import load_catalogue
from darkroom.knowledge.catalogue import Catalogue
from darkroom.rpc.errors import DarkroomError
from darkroom.v1 import checkpoint_pb2, worker_pb2
from services.worker.artifact_listing import ArtifactListing
from services.worker.checkpoint_files import check_pipeline_folder, read_json
from services.worker.config import WorkerSettings
from services.worker.plan_checks import source_folder


class Inspector:
    """Looks at one worker's disk."""

    def __init__(self, settings: WorkerSettings) -> None:
        self._settings = settings
        self._artifacts = ArtifactListing(settings)

    @functools.cached_property
    def catalogue(self) -> Catalogue:
        """Read on first use."""
        return load_catalogue(self._settings.catalog_paths)

    def inspect(self, model: str) -> worker_pb2.Inspection:
        """Returns what is known of `model`. Raises UnknownModelError."""
        source = self.catalogue.source(model)
        answer = worker_pb2.Inspection(disk_free_bytes=shutil.disk_usage(_existing(self._settings.models_dir)).free)
        try:
            folder = source_folder(source, self._settings)
            if folder is not None:
                answer.present_bytes = check_pipeline_folder(folder, weighted_components(folder))
                answer.is_present = True
            else:
                self._inspect_cache(source, answer)
        except DarkroomError as problem:
            answer.problem = problem.message
        answer.artifacts.extend(self._artifacts.list(self.catalogue.find(model), self.catalogue))
        return answer

    def is_trusted(self, repo_id: str) -> bool:
        """True if the catalogue names the Hub repository, for a model or for a component."""
        return self.catalogue.is_trusted(repo_id)

    def _inspect_cache(self, source: checkpoint_pb2.CheckpointSource, answer: worker_pb2.Inspection) -> None:
        """Looks at what was fetched from the Hub, which may lack what artifacts replaced. Raises DarkroomError."""
        folder = self._cached_folder(source)
        if folder is None:
            return
        names = weighted_components(folder)
        whole = [name for name in names if any((folder / name).glob("*.safetensors"))]
        answer.present_bytes = check_pipeline_folder(folder, whole)
        answer.is_present = whole == names

    def _cached_folder(self, source: checkpoint_pb2.CheckpointSource) -> Path | None:
        """The snapshot of a Hub repository in the local cache; None where there is none."""
        home = Path(huggingface_hub.constants.HF_HUB_CACHE) / f"models--{source.repo_id.replace('/', '--')}"
        try:
            revision = (home / "refs" / (source.revision or "main")).read_text().strip()
        except OSError:
            revision = source.revision
        folder = home / "snapshots" / revision
        return folder if revision and (folder / "model_index.json").is_file() else None


def weighted_components(folder: Path) -> list[str]:
    """Components of a pipeline folder that have weights, by its index: models, not tokenizers or schedulers."""
    index = read_json(folder / "model_index.json", missing=f"{folder.name} is no pipeline folder")
    named = [name for name, entry in index.items() if isinstance(entry, list) and len(entry) == 2 and entry[0]]
    return [name for name in named if (folder / name / "config.json").is_file()]


def _existing(folder: Path) -> Path:
    return folder if folder.exists() or folder == folder.parent else _existing(folder.parent)
