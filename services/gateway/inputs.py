"""Pictures that requests bring: kept beside the outputs, under the SHA-256 of their bytes, while a job names them.

    inputs/SHA256     a file as it was sent

Knows nothing of formats, or of jobs' states. Invariants: what a job names is stored before the job is accepted; what is
read hashes to its name; a file that was stored, or stored again, less than a grace age ago is never swept.
"""

from __future__ import annotations

import asyncio
import datetime
import hashlib
import re
import secrets
from collections.abc import Awaitable, Callable, Iterable, Sequence

from darkroom.rpc.errors import DarkroomError, DataLossError, DiskFullError, OutputsUnavailableError
from darkroom.rpc.logs import log
from darkroom.storage import Store
from darkroom.v1 import generation_pb2

FOLDER = "inputs/"
_NAME = re.compile(rf"{FOLDER}([0-9a-f]{{64}})")
# From storing a picture to the job that names it: a submit that takes longer has failed.
GRACE_AGE_S = 3600.0


class Inputs:
    """The pictures of one store."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def keep(self, files: Iterable[bytes]) -> None:
        """Stores files for good, each anew, so that its age begins again.

        Raises:
            DiskFullError: no room.
            OutputsUnavailableError: the bucket does not take them.
        """
        await asyncio.to_thread(self._keep, list(files))

    async def keep_missing(self, files: Iterable[bytes]) -> None:
        """Stores those files again that are gone: a sweep may have listed them before they were stored anew."""
        await asyncio.to_thread(self._keep, list(files), only_missing=True)

    async def fetch(self, request: generation_pb2.GenerationRequest) -> generation_pb2.GenerationRequest:
        """Returns the request with the files of its pictures.

        Raises:
            DataLossError: a picture is gone or has changed.
            OutputsUnavailableError: the store does not answer.
        """
        full = generation_pb2.GenerationRequest()
        full.CopyFrom(request)
        files = await asyncio.to_thread(self._read, [image.sha256 for image in request.images])
        for image, data in zip(full.images, files, strict=True):
            image.data = data
        return full

    async def sweep(self, find_named: Callable[[], Awaitable[set[str]]], age_s: float = GRACE_AGE_S) -> int:
        """Deletes pictures that no job names and that were stored at least `age_s` ago; returns how many.

        Args:
            find_named: finds the SHA-256 of every picture that a job may still need.
            age_s: of the youngest that may go. Judged again after the names are known: what was stored anew meanwhile
                stays, for a job that is about to name it.
        """
        old = await asyncio.to_thread(self._old, age_s)
        if not old:
            return 0
        unnamed = old - await find_named()
        return await asyncio.to_thread(self._drop, unnamed, age_s)

    def _keep(self, files: Sequence[bytes], *, only_missing: bool = False) -> None:
        for data in files:
            sha256 = hashlib.sha256(data).hexdigest()
            draft = self._store.drafts / f"input-{sha256}-{secrets.token_hex(4)}"
            try:
                if only_missing and self._store.size(f"{FOLDER}{sha256}") is not None:
                    continue
                draft.write_bytes(data)
                self._store.take_file(f"{FOLDER}{sha256}", draft)
            except OSError as fault:
                raise self._unavailable("stored", fault) from fault
            finally:
                draft.unlink(missing_ok=True)

    def _read(self, names: Sequence[str]) -> list[bytes]:
        files = []
        for sha256 in names:
            try:
                data = self._store.read(f"{FOLDER}{sha256}")
            except FileNotFoundError as gone:
                raise DataLossError(f"the picture {sha256} is no longer stored; submit it again") from gone
            except OSError as fault:
                raise self._unavailable("read", fault) from fault
            if hashlib.sha256(data).hexdigest() != sha256:
                raise DataLossError(f"the picture {sha256} was changed where it is stored; submit it again")
            files.append(data)
        return files

    def _old(self, age_s: float) -> set[str]:
        """Returns the names of all pictures that were stored at least `age_s` ago."""
        last = datetime.datetime.now(datetime.UTC) - datetime.timedelta(seconds=age_s)
        listed = ((_NAME.fullmatch(file.key), file.modified_at) for file in self._store.list(FOLDER))
        return {match[1] for match, modified_at in listed if match is not None and modified_at <= last}

    def _drop(self, names: set[str], age_s: float) -> int:
        gone = names & self._old(age_s)
        for sha256 in gone:
            self._store.delete(f"{FOLDER}{sha256}")
        if gone:
            log.info("inputs_swept", num_files=len(gone))
        return len(gone)

    def _unavailable(self, verb: str, fault: OSError) -> DarkroomError:
        text = f"the request's pictures can't be {verb} now: {fault.strerror or fault}"
        if verb == "stored" and self._store.is_local:
            return DiskFullError(text, place=self._store.url)
        return OutputsUnavailableError(text, retry_after_s=5.0, place=self._store.url)
