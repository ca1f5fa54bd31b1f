"""Files against their hashes: once, in parallel, and remembered.

The policy: every byte of a file is hashed before what was read from it is used, in threads beside the reading, one a
file. A file that passed is remembered by device, inode, size and time of change, so that the next load costs nothing;
whoever changes a byte changes one of them, save a failing disk. Headers and manifests are hashed at every load. Knows
nothing of tensors. Invariant: `wait` returns only if every file is what its manifest says.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from darkroom.artifacts.manifest import ArtifactFile
from darkroom.rpc.errors import CancelledError, CorruptCheckpointError

PIECE_BYTES = 8 * 2**20
# Hashing is bound by the processor, one thread a file.
MOST_THREADS = 8
# Files that are remembered; the oldest go first.
MOST_KNOWN = 1000


class Verification:
    """Checks files in the background. Leaving its `with` block stops what still runs."""

    def __init__(self, memory: Path | None = None) -> None:
        """Begins nothing yet; `memory` is the file of what was verified before, None remembers nothing."""
        self._memory = memory
        self._known = _read(memory)
        self._pool = ThreadPoolExecutor(MOST_THREADS, thread_name_prefix="verify")
        self._running: list[tuple[ArtifactFile, str, Future[str]]] = []
        self._is_stopped = False

    def __enter__(self) -> Verification:
        return self

    def __exit__(self, *_: object) -> None:
        self._is_stopped = True
        self._pool.shutdown(cancel_futures=True)

    def begin(self, file: ArtifactFile, path: Path) -> None:
        """Starts hashing a file that is not known by its time of change."""
        identity = identity_of(path)
        if self._known.get(identity) != file.sha256:
            self._running.append((file, identity, self._pool.submit(self._hash, path)))

    def wait(self) -> None:
        """Returns when every file was hashed, and remembers them. Raises CorruptCheckpointError for a damaged one."""
        passed = {}
        for file, identity, hashing in self._running:
            if hashing.result() != file.sha256:
                problem = f"{file.name} is damaged: its sha256 is {hashing.result()}, {file.sha256} expected"
                raise CorruptCheckpointError(problem, file=file.name)
            passed[identity] = file.sha256
        self._running.clear()
        if passed and self._memory is not None:
            _write(self._memory, {**_read(self._memory), **passed})

    def _hash(self, path: Path) -> str:
        digest = hashlib.sha256()
        with path.open("rb") as file:
            while piece := file.read(PIECE_BYTES):
                if self._is_stopped:
                    raise CancelledError("stopped while hashing")
                digest.update(piece)
        return digest.hexdigest()


def identity_of(path: Path) -> str:
    """Returns what changes when a file's bytes do: device, inode, size, nanoseconds of its last change."""
    found = path.stat()
    return f"{found.st_dev}:{found.st_ino}:{found.st_size}:{found.st_mtime_ns}:{found.st_ctime_ns}"


def _read(memory: Path | None) -> dict[str, str]:
    """What was verified; nothing where the file is missing or damaged, so that it is verified again."""
    try:
        found = json.loads(memory.read_text()) if memory is not None else {}
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _write(memory: Path, known: Mapping[str, str]) -> None:
    memory.parent.mkdir(parents=True, exist_ok=True)
    latest = dict(list(known.items())[-MOST_KNOWN:])
    with tempfile.NamedTemporaryFile("w", dir=memory.parent, prefix=memory.name, delete=False) as file:
        json.dump(latest, file, indent=1)
    os.replace(file.name, memory)
