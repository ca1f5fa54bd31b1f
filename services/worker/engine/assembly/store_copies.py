"""Copies artifacts from a store that is elsewhere into one on this machine, with the bytes told.

Knows nothing of tensors. Invariants: what is copied lists here only once it is whole; a cancelled copy leaves drafts
that nothing reads, dropped later.
"""

from __future__ import annotations

import hashlib
import secrets
from pathlib import Path

from darkroom.artifacts.folder import LocalArtifact
from darkroom.artifacts.manifest import ArtifactFile
from darkroom.artifacts.store import BLOBS, ArtifactStore
from darkroom.rpc.errors import CorruptCheckpointError, SourceRefusedError
from darkroom.storage import open_store
from darkroom.v1 import generation_pb2, plan_pb2
from services.worker.artifact_sources import checked, stem_in, wanted_of
from services.worker.engine.reporting import LoadReporter

PIECE_BYTES = 16 * 2**20
# Drafts of copies that nobody goes on with.
LEFTOVER_S = 24 * 3600.0


def copy_from_store(
    remote: ArtifactStore, part: plan_pb2.ComponentPlan, folder: Path, report: LoadReporter
) -> LocalArtifact:
    """Returns a component's artifact, with its files in a store in `folder`.

    Raises:
        SourceRefusedError: it has not passed, or is not what the plan wants.
        CorruptCheckpointError: damaged.
        CancelledError: asked to stop.
        OSError: the store or the disk failed.
    """
    local, stem, identity = ArtifactStore(open_store(folder)), stem_in(part.source), part.source.artifact_id
    local.store.drop_leftovers(LEFTOVER_S)
    manifest, gates = remote.get(stem, identity), remote.gates(stem, identity)
    if gates is None:
        raise SourceRefusedError(f"artifact {identity[:12]} has lost its gates")
    missing = [file for file in manifest.files if local.store.size(BLOBS + file.sha256) != file.size_bytes]
    done, total = 0, sum(file.size_bytes for file in missing)
    for file in missing:
        done = _copy(remote, local, file, report, done, total)
    local.describe(manifest)
    local.pass_gates(manifest, gates)
    return checked(local.open(stem, identity), wanted_of(part))


def _copy(
    remote: ArtifactStore, local: ArtifactStore, file: ArtifactFile, report: LoadReporter, done: int, total: int
) -> int:
    """Copies one file piece by piece; returns the bytes that are done."""
    digest, draft = hashlib.sha256(), local.store.drafts / f"{file.sha256}.{secrets.token_hex(8)}"
    with draft.open("wb") as target:
        for offset in range(0, file.size_bytes, PIECE_BYTES):
            report.check()
            piece = remote.store.read(BLOBS + file.sha256, offset, PIECE_BYTES)
            digest.update(piece)
            target.write(piece)
            report.progress(
                generation_pb2.Progress(
                    phase=generation_pb2.PHASE_DOWNLOADING,
                    completed=done + target.tell(),
                    total=total,
                    detail=file.name,
                )
            )
        done += target.tell()
    if digest.hexdigest() != file.sha256:
        draft.unlink()
        raise CorruptCheckpointError(f"{file.name} is damaged in {remote.store.url}", file=file.name)
    local.store.take_file(BLOBS + file.sha256, draft)
    return done
