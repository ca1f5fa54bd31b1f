"""Fetching a repository from the Hub, with the bytes that really arrived, and an end when somebody asks for it.

Knows nothing of what is fetched. Invariants: nothing pickled is fetched; told bytes never go back; a cancelled fetch
leaves partial files that the next one resumes.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import huggingface_hub
from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, LocalEntryNotFoundError, RepositoryNotFoundError
from tqdm.auto import tqdm  # type: ignore[import-untyped]

from darkroom.rpc.errors import SourceRefusedError
from darkroom.v1 import checkpoint_pb2, generation_pb2
from services.worker.engine.reporting import LoadReporter

PATTERNS = ("*.json", "*.txt", "*.model", "*.safetensors", "*.jinja")


def fetch(source: checkpoint_pb2.CheckpointSource, report: LoadReporter, without: Sequence[str] = ()) -> Path:
    """Returns the snapshot's folder, fetching what is missing: of a source that names a file, that file alone.

    Args:
        source: on the Hub.
        report: told of bytes.
        without: components whose weights come from elsewhere and stay behind; an empty name means all weights.

    Raises:
        SourceRefusedError: it is gated, absent, or the Hub can't be reached.
        CancelledError: asked to stop.
    """
    found = find_fetched(source, without)
    if found is not None:
        return found
    wanted = _wanted(source, without)
    try:
        return Path(huggingface_hub.snapshot_download(tqdm_class=FetchProgress(source, report).bar_class, **wanted))
    except GatedRepoError as gated:
        raise SourceRefusedError(f"{source.repo_id} is gated: accept its licence and set HF_TOKEN") from gated
    except (RepositoryNotFoundError, LocalEntryNotFoundError, HfHubHTTPError, OSError) as absent:
        raise SourceRefusedError(f"{source.repo_id} can't be fetched ({type(absent).__name__})") from absent


def find_fetched(source: checkpoint_pb2.CheckpointSource, without: Sequence[str] = ()) -> Path | None:
    """Returns the whole snapshot that an earlier fetch of the same left here; None where there is none."""
    try:
        return Path(huggingface_hub.snapshot_download(local_files_only=True, **_wanted(source, without)))
    except LocalEntryNotFoundError:
        return None


def _wanted(source: checkpoint_pb2.CheckpointSource, without: Sequence[str]) -> dict[str, Any]:
    return {
        "repo_id": source.repo_id,
        "revision": source.revision or None,
        "allow_patterns": [source.file] if source.file else list(PATTERNS),
        "ignore_patterns": [f"{name}/*.safetensors" if name else "*.safetensors" for name in without],
    }


class FetchProgress:
    """Adds up what the Hub's progress bars say. They are moved by several threads."""

    def __init__(self, source: checkpoint_pb2.CheckpointSource, report: LoadReporter) -> None:
        self._source = source
        self._report = report
        self._lock = threading.Lock()
        self._told = 0

    @property
    def bar_class(self) -> type:
        """A tqdm class for `snapshot_download`: draws nothing, tells bytes, and raises once the load is cancelled."""
        owner = self

        class Bar(tqdm):  # type: ignore[misc]
            def __init__(self, *args: Any, **options: Any) -> None:
                self._is_bytes = options.get("unit") == "B"
                options.pop("name", None)
                super().__init__(*args, **{**options, "disable": True})

            def update(self, n: float | None = 1) -> None:
                self.n += n or 0
                if self._is_bytes:
                    owner.saw(int(self.n), int(self.total or 0))

        return Bar

    def saw(self, completed: int, total: int) -> None:
        """A bar stands at `completed` bytes. One bar counts the network's, another the disk's: the larger is told."""
        self._report.check()
        # Told under the lock: of two threads, the one with fewer bytes must not speak last.
        with self._lock:
            if completed <= self._told:
                return
            self._told = completed
            self._report.progress(
                generation_pb2.Progress(
                    phase=generation_pb2.PHASE_DOWNLOADING,
                    completed=completed,
                    total=max(total, self._source.fetch_bytes),
                    detail=self._source.repo_id,
                )
            )
