"""The finished files of one store.

Knows nothing of jobs' states or of how a store keeps files. Invariants: all that blocks runs in a thread; what is read
has the size that its Output says.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import itertools
import secrets
from collections.abc import AsyncGenerator, Iterator

from darkroom.rpc.errors import DataLossError, OffsetError, OutputsUnavailableError
from darkroom.rpc.logs import log
from darkroom.storage import Store, Stored
from darkroom.v1 import generation_pb2, worker_pb2
from services.gateway.outputs.draft import Draft
from services.gateway.outputs.naming import ORPHAN_AGE_S, PROBE, STARTS, STORE_ID, claim_of, name_of, start_of

CHUNK_BYTES = 256 * 1024
# Read at once: most pictures need one request to a bucket.
BLOCK_BYTES = 16 * CHUNK_BYTES


class Outputs:
    """What gateways keep for their jobs."""

    def __init__(self, store: Store) -> None:
        self._store = store
        # Why no file can be stored now, "" where one can; set by whoever could not store his.
        self.problem = ""
        self._is_trying = False

    async def open(self) -> str:
        """Returns the store's id, which is made up and kept there where it has none. Raises OSError."""

        def find() -> str:
            self._store.create(STORE_ID, secrets.token_hex(8).encode())
            return self._store.read(STORE_ID).decode()

        return await asyncio.to_thread(find)

    def draft(self, job_id: str, counter: int) -> Draft:
        """Starts a file. Raises UnknownJobError for what is no id."""
        return Draft(self._store, name_of(job_id, counter))

    async def exists(self, job_id: str, counter: int) -> bool:
        """Tells whether anything of one claim's file is there. Raises OSError."""
        return bool(await asyncio.to_thread(self._keys, job_id, counter))

    async def delete(self, job_id: str, counter: int | None = None) -> None:
        """Removes the file of one claim, or of all claims; where the store fails, a sweep takes it later."""
        await asyncio.to_thread(self._delete, job_id, counter)

    async def delete_older(self, job_id: str, counter: int) -> None:
        """Removes drafts and then files of lower claims, which can store nothing any more from this machine.

        Where the store fails, a sweep takes them later.
        """
        await asyncio.to_thread(self._delete, job_id, None, counter)

    async def claims(self, job_id: str) -> list[tuple[str, int]]:
        """Returns the job and the counter of each claim of which something is stored. Raises OSError."""
        keys = await asyncio.to_thread(self._keys, job_id, None)
        return list(dict.fromkeys(claim for key in keys if (claim := claim_of(key)) is not None))

    async def has_room(self) -> bool:
        """Tries whether a file can be stored, if the last one could not; one try at a time, whoever asks."""
        if self.problem and not self._is_trying:
            self._is_trying = True
            try:
                await asyncio.to_thread(self._try_to_store)
                self.problem = ""
            except OSError as fault:
                self.problem = f"no output can be stored: {fault.strerror or fault}"
            finally:
                self._is_trying = False
        return not self.problem

    def old_files(self, count: int, age_s: float = ORPHAN_AGE_S) -> Iterator[list[tuple[str, int]]]:
        """Yields finished files older than `age_s`, `count` at a time: each its job and its counter. Blocks."""
        claims = iter(dict.fromkeys(claim for claim in self._old_claims(age_s) if claim is not None))
        while page := list(itertools.islice(claims, count)):
            yield page

    async def drop_leftovers(self) -> int:
        """Removes what crashes left half-written; returns how many files that were. Raises OSError."""
        return await asyncio.to_thread(self._store.drop_leftovers, ORPHAN_AGE_S)

    async def read(
        self, job_id: str, counter: int, output: generation_pb2.Output, offset: int
    ) -> AsyncGenerator[worker_pb2.OutputChunk, None]:
        """Yields the file's pieces from `offset` on; none if that is its end.

        Raises:
            OffsetError: `offset` is negative or past the end.
            DataLossError: the file is gone or has another size.
            OutputsUnavailableError: the store does not answer.
        """
        if not 0 <= offset <= output.size_bytes:
            text = f"offset {offset} is outside of the file, which has {output.size_bytes} bytes"
            raise OffsetError(text, size_bytes=output.size_bytes)
        key = name_of(job_id, counter) if self._store.is_local else f"{name_of(job_id, counter)}.{output.sha256}"
        with _reading(job_id):
            size_bytes = await asyncio.to_thread(self._store.size, key)
        if size_bytes is None:
            raise DataLossError(f"the output of job {job_id} is no longer stored", job_id=job_id)
        if size_bytes != output.size_bytes:
            raise DataLossError(f"the output of job {job_id} was changed where it is stored", job_id=job_id)
        while offset < output.size_bytes:
            with _reading(job_id):
                block = await asyncio.to_thread(self._store.read, key, offset, BLOCK_BYTES)
            if not block:
                raise DataLossError(f"the output of job {job_id} was cut where it is stored", job_id=job_id)
            for start in range(0, len(block), CHUNK_BYTES):
                yield worker_pb2.OutputChunk(offset=offset + start, data=block[start : start + CHUNK_BYTES])
            offset += len(block)

    def _keys(self, job_id: str, counter: int | None) -> list[str]:
        """Returns the keys of a claim, or of all of a job's; what names a file comes before it."""
        if self._store.is_local and counter is not None:
            name = name_of(job_id, counter)
            return [name] if self._store.size(name) is not None else []
        prefix = start_of(job_id) if counter is None else name_of(job_id, counter)
        claims = {file.key: claim_of(file.key) for file in self._store.list(prefix)}
        return sorted(key for key, claim in claims.items() if claim and counter in (None, claim[1]))

    def _delete(self, job_id: str, counter: int | None, below: int | None = None) -> None:
        try:
            if below is not None:
                self._drop_drafts(job_id, below)
            for key in self._keys(job_id, counter):
                claim = claim_of(key)
                if below is None or (claim is not None and claim[1] < below):
                    self._store.delete(key)
        except OSError as fault:
            log.warning("output_not_deleted", job_id=job_id, cause=str(fault))

    def _drop_drafts(self, job_id: str, below: int) -> None:
        folder, _, start = start_of(job_id).rpartition("/")
        for path in self._store.drafts.glob(f"{start}*"):
            claim = claim_of(f"{folder}/{path.name}")
            if claim is not None and claim[1] < below:
                path.unlink(missing_ok=True)

    def _old_claims(self, age_s: float) -> Iterator[tuple[str, int] | None]:
        for start in STARTS:
            yield from (claim_of(file.key) for file in self._store.list(start) if _age_s(file) > age_s)

    def _try_to_store(self) -> None:
        path = self._store.drafts / f"probe-{secrets.token_hex(4)}"
        try:
            path.write_bytes(bytes(CHUNK_BYTES))
            self._store.take_file(PROBE, path)
        finally:
            path.unlink(missing_ok=True)
            self._store.delete(PROBE)


@contextlib.contextmanager
def _reading(job_id: str) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as gone:
        raise DataLossError(f"the output of job {job_id} is no longer stored", job_id=job_id) from gone
    except OSError as fault:
        text = f"the output of job {job_id} can't be read now: {fault.strerror or fault}"
        raise OutputsUnavailableError(text, retry_after_s=5.0, job_id=job_id) from fault


def _age_s(file: Stored) -> float:
    return (datetime.datetime.now(datetime.UTC) - file.modified_at).total_seconds()
