"""A file that a worker is sending.

Who is late must store nothing, even if it is killed before it hears that it is late. So a draft is there before its
claim is looked up a last time (`affirm`), and whoever overtook the claim takes drafts away before files: then either
the look tells of the newer claim, or the draft is gone when it is to get its name, or the file is there to be deleted.
A draft for a bucket lies on its gateway's own machine, out of reach: what appears there late is a stray, which the
housekeeper looks for.

Knows nothing of jobs' states. Invariant: what is committed has the size and the SHA-256 that were announced.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
from collections.abc import Awaitable, Callable, Iterator
from typing import IO

from darkroom.rpc.errors import BrokenOutputError, DiskFullError, OutputsUnavailableError, StaleTokenError
from darkroom.storage import Store
from darkroom.v1 import generation_pb2, worker_pb2

# Nothing that Darkroom makes is larger; a worker that sends more is broken.
MAX_OUTPUT_BYTES = 4 * 1024**3


class Draft:
    """One claim's file, on its way.

    Args:
        store: where it will be.
        name: the claim's key there.
    """

    def __init__(self, store: Store, name: str) -> None:
        self._store = store
        self._name = name
        self._path = store.drafts / name.rpartition("/")[2]
        # Opened with the first piece, so that a disk that is full then fails like one that is full later.
        self._file: IO[bytes] | None = None
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
        file = self._opened()
        with self._writing():
            file.write(chunk.data)
        self._hash.update(chunk.data)
        self._size += len(chunk.data)

    async def commit(self, output: generation_pb2.Output, affirm: Callable[[], Awaitable[None]]) -> None:
        """Makes the file visible under its final name, stored for good.

        Args:
            output: what the worker said of the file.
            affirm: looks whether the claim is the newest of its job; raises StaleTokenError if not.

        Raises:
            BrokenOutputError: size or SHA-256 differ from what the worker said.
            DiskFullError: no room.
            OutputsUnavailableError: the bucket does not take it.
            StaleTokenError: a newer claim has the job, or another file has this claim's name.
        """
        if self._size != output.size_bytes or self._hash.hexdigest() != output.sha256:
            text = f"{self._size} bytes with SHA-256 {self._hash.hexdigest()} came, {output.size_bytes} with "
            raise BrokenOutputError(f"{text}{output.sha256 or 'none'} were announced")
        self._opened()
        await affirm()
        settling = asyncio.create_task(asyncio.to_thread(self._settle))
        try:
            await asyncio.shield(settling)
        except asyncio.CancelledError:
            # The thread goes on; whoever deletes the file of a lost job must come after it.
            await asyncio.wait([settling])
            raise

    def discard(self) -> None:
        """Forgets a file that was not committed."""
        if self._file is not None:
            with contextlib.suppress(OSError):  # what it still held does not fit on the disk: so be it
                self._file.close()
        self._path.unlink(missing_ok=True)

    def _opened(self) -> IO[bytes]:
        if self._file is None:
            with self._writing():
                self._file = self._path.open("wb")
        return self._file

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as full:
            raise DiskFullError(f"the output can't be written: {full.strerror}", path=self._path.parent) from full

    def _settle(self) -> None:
        try:
            self._opened().close()
            if self._store.is_local:
                self._store.take_file(self._name, self._path)
            else:
                self._settle_in_bucket()
        except OSError as fault:
            if isinstance(fault, FileNotFoundError) and not self._path.exists():
                raise StaleTokenError(f"a newer claim took the draft {self._path.name} away") from fault
            text = f"the output can't be stored: {fault.strerror or fault}"
            kind = DiskFullError if self._store.is_local else OutputsUnavailableError
            raise kind(text, place=self._store.url) from fault

    def _settle_in_bucket(self) -> None:
        sha256 = self._hash.hexdigest()
        self._store.take_file(f"{self._name}.{sha256}", self._path)
        told = json.dumps({"sha256": sha256, "size_bytes": self._size}).encode()
        # What is there already is ours if it says the same: the answer to the first write was lost.
        if not self._store.create(self._name, told) and self._store.read(self._name) != told:
            raise StaleTokenError(f"another file is stored as {self._name} already")
