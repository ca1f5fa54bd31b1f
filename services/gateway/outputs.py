"""Finished files on disk.

    outputs/
    ├── .name             which database these outputs belong to
    ├── unfinished/       being written
    └── 3f/ID-COUNTER     a job's file: its id and the counter of the claim that made it

Knows nothing of jobs' states. Invariants: a file under its final name is complete and hashes to what its Output says;
names are made of a checked id and a number, never of what a caller sent.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import itertools
import os
import re
import secrets
import time
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path
from typing import IO

from darkroom.rpc.errors import BrokenOutputError, DataLossError, DiskFullError, OffsetError
from darkroom.v1 import generation_pb2, worker_pb2
from services.gateway.store.vocabulary import JOB_ID, check_job_id

CHUNK_BYTES = 256 * 1024
# Nothing that Darkroom makes is larger; a worker that sends more is broken.
MAX_OUTPUT_BYTES = 4 * 1024**3
UNFINISHED = "unfinished"
# Younger files may be about to be named.
ORPHAN_AGE_S = 3600.0
FILE_NAME = re.compile(rf"({JOB_ID.pattern})-(\d+)")


class Outputs:
    """The outputs of one folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        # Set by whoever could not store a file.
        self.is_full = False

    def open(self) -> str:
        """Makes the folder where it is absent, and returns its name."""
        (self._folder / UNFINISHED).mkdir(parents=True, exist_ok=True)
        name = self._folder / ".name"
        if not name.exists():
            draft = self._folder / UNFINISHED / f"name-{secrets.token_hex(4)}"
            draft.write_text(secrets.token_hex(8))
            with contextlib.suppress(FileExistsError):
                os.link(draft, name)
            draft.unlink()
        return name.read_text().strip()

    def path(self, job_id: str, counter: int) -> Path:
        """Returns where a job's file is, or would be. Raises UnknownJobError for what is no id."""
        check_job_id(job_id)
        return self._folder / job_id[-2:] / f"{job_id}-{int(counter)}"

    def draft(self, job_id: str, counter: int) -> Draft:
        """Starts a file."""
        return Draft(self._folder / UNFINISHED / f"{job_id}-{int(counter)}", self.path(job_id, counter))

    def delete(self, job_id: str, counter: int | None = None) -> None:
        """Removes the file of one claim, or of all claims."""
        check_job_id(job_id)
        folder = self._folder / job_id[-2:]
        names = folder.glob(f"{job_id}-*") if counter is None else [self.path(job_id, counter)]
        for name in list(names):
            name.unlink(missing_ok=True)

    def has_room(self) -> bool:
        """Tries whether a file can be written, if the last one could not. May block."""
        if self.is_full:
            probe = self._folder / UNFINISHED / f"probe-{secrets.token_hex(4)}"
            with contextlib.suppress(OSError):
                probe.write_bytes(bytes(CHUNK_BYTES))
                self.is_full = False
            probe.unlink(missing_ok=True)
        return not self.is_full

    def delete_others(self, job_id: str, counter: int) -> None:
        """Removes the files of all claims but one."""
        kept = self.path(job_id, counter)
        for name in list(kept.parent.glob(f"{job_id}-*")):
            if name != kept:
                name.unlink(missing_ok=True)

    def old_files(self, count: int) -> Iterator[list[tuple[str, int]]]:
        """Yields finished files that are old enough to be judged, `count` at a time: each its job and its counter."""
        names = (path.name for path in self._folder.glob("[0-9a-f][0-9a-f]/*") if _is_old(path))
        matches = (FILE_NAME.fullmatch(name) for name in names)
        files = ((match[1], int(match[2])) for match in matches if match)
        while page := list(itertools.islice(files, count)):
            yield page

    def drop_leftovers(self) -> int:
        """Removes what crashes left half-written; returns how many files that were."""
        leftovers = [path for path in (self._folder / UNFINISHED).iterdir() if _is_old(path)]
        for path in leftovers:
            path.unlink(missing_ok=True)
        return len(leftovers)

    async def read(
        self, job_id: str, counter: int, output: generation_pb2.Output, offset: int
    ) -> AsyncGenerator[worker_pb2.OutputChunk, None]:
        """Yields the file's pieces from `offset` on; none if that is its end.

        Raises:
            OffsetError: `offset` is negative or past the end.
            DataLossError: the file is gone or has another size.
        """
        if not 0 <= offset <= output.size_bytes:
            text = f"offset {offset} is outside of the file, which has {output.size_bytes} bytes"
            raise OffsetError(text, size_bytes=output.size_bytes)
        path = self.path(job_id, counter)
        try:
            file = await asyncio.to_thread(path.open, "rb")
        except FileNotFoundError as gone:
            raise DataLossError(f"the output of job {job_id} is no longer on disk", job_id=job_id) from gone
        with file:
            if os.fstat(file.fileno()).st_size != output.size_bytes:
                raise DataLossError(f"the output of job {job_id} was changed on disk", job_id=job_id)
            file.seek(offset)
            while data := await asyncio.to_thread(file.read, CHUNK_BYTES):
                yield worker_pb2.OutputChunk(offset=offset, data=data)
                offset += len(data)


class Draft:
    """A file that is being written."""

    def __init__(self, unfinished: Path, final: Path) -> None:
        self._unfinished = unfinished
        self._final = final
        self._file: IO[bytes] = unfinished.open("wb")
        self._hash = hashlib.sha256()
        self._size = 0

    @property
    def size_bytes(self) -> int:
        """Bytes that came so far."""
        return self._size

    def write(self, chunk: worker_pb2.OutputChunk) -> None:
        """Adds a piece; one that is there already is skipped, as a replay brings it.

        Raises:
            BrokenOutputError: a piece is missing, or there are too many.
            DiskFullError: no room.
        """
        if chunk.offset + len(chunk.data) <= self._size:
            return
        if chunk.offset != self._size or self._size + len(chunk.data) > MAX_OUTPUT_BYTES:
            text = f"the worker sent bytes {chunk.offset} to {chunk.offset + len(chunk.data)} after {self._size}"
            raise BrokenOutputError(text)
        try:
            self._file.write(chunk.data)
        except OSError as full:
            raise DiskFullError(f"the output can't be written: {full.strerror}", path=self._final.parent) from full
        self._hash.update(chunk.data)
        self._size += len(chunk.data)

    async def commit(self, output: generation_pb2.Output) -> None:
        """Makes the file visible under its final name, on disk for good.

        Raises:
            BrokenOutputError: size or SHA-256 differ from what the worker said.
            DiskFullError: no room.
        """
        if self._size != output.size_bytes or self._hash.hexdigest() != output.sha256:
            text = f"{self._size} bytes with SHA-256 {self._hash.hexdigest()} came, {output.size_bytes} with "
            raise BrokenOutputError(f"{text}{output.sha256 or 'none'} were announced")
        settling = asyncio.create_task(asyncio.to_thread(self._settle))
        try:
            await asyncio.shield(settling)
        except asyncio.CancelledError:
            # The thread goes on; whoever deletes the file of a lost job must come after it.
            await asyncio.wait([settling])
            raise
        except OSError as full:
            raise DiskFullError(f"the output can't be stored: {full.strerror}", path=self._final.parent) from full

    def discard(self) -> None:
        """Forgets a file that was not committed."""
        with contextlib.suppress(OSError):  # what it still held does not fit on the disk: so be it
            self._file.close()
        self._unfinished.unlink(missing_ok=True)

    def _settle(self) -> None:
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        is_new = not self._final.parent.exists()
        self._final.parent.mkdir(exist_ok=True)
        os.rename(self._unfinished, self._final)
        _sync_folder(self._final.parent)
        if is_new:
            _sync_folder(self._final.parent.parent)


def _is_old(path: Path) -> bool:
    try:
        return time.time() - path.stat().st_mtime > ORPHAN_AGE_S
    except FileNotFoundError:
        return False


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
