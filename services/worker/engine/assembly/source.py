"""First stage: the plan's source becomes a folder on this machine.

Trust and headers were checked by the supervisor. Invariant: nothing pickled is ever fetched.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import huggingface_hub
from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, LocalEntryNotFoundError, RepositoryNotFoundError

from darkroom.rpc.errors import SourceRefusedError
from darkroom.v1 import checkpoint_pb2, generation_pb2
from services.worker.engine.assembly.stage import Assembly, Stage
from services.worker.engine.loop import LoadReporter
from services.worker.plan_checks import source_folder

FETCHED = ("*.json", "*.txt", "*.model", "*.safetensors", "*.jinja")


class SourceStage(Stage):
    """Finds the folder, fetching it from the Hub if it must."""

    name = "source"

    def apply(self, assembly: Assembly, report: LoadReporter) -> None:
        source = assembly.plan.source
        assembly.folder = source_folder(source, assembly.settings) or self._from_hub(source, report)

    def undo(self, assembly: Assembly) -> None:
        assembly.folder = None

    def _from_hub(self, source: checkpoint_pb2.CheckpointSource, report: LoadReporter) -> Path:
        wanted: dict[str, Any] = {
            "repo_id": source.repo_id,
            "revision": source.revision or None,
            "allow_patterns": list(FETCHED),
        }
        try:
            return Path(huggingface_hub.snapshot_download(local_files_only=True, **wanted))
        except LocalEntryNotFoundError:
            pass
        phase = generation_pb2.PHASE_DOWNLOADING
        report.progress(generation_pb2.Progress(phase=phase, total=source.fetch_bytes, detail=source.repo_id))
        try:
            return Path(huggingface_hub.snapshot_download(**wanted))
        except GatedRepoError as gated:
            raise SourceRefusedError(f"{source.repo_id} is gated: accept its licence and set HF_TOKEN") from gated
        except (RepositoryNotFoundError, LocalEntryNotFoundError, HfHubHTTPError) as absent:
            raise SourceRefusedError(f"{source.repo_id} can't be fetched ({type(absent).__name__})") from absent
