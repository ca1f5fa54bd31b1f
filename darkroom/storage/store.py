"""What every store of files can do.

Knows nothing of directories or protocols. Invariants: a key's file is complete or absent, at every moment and after any
crash; of several that create one key at once, one is told that it did.
"""

from __future__ import annotations

import abc
import datetime
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Stored:
    """One file of a listing. `modified_at` is aware UTC, by the clock of whoever stores."""

    key: str
    size_bytes: int
    modified_at: datetime.datetime


class Store(abc.ABC):
    """Files by key: see `keys.py` for what a key may be. All methods block, and may be called from any thread.

    Every method raises ValueError for what is no key, and OSError where the disk or the server fails.
    """

    is_local: bool
    url: str

    @abc.abstractmethod
    def create(self, key: str, data: bytes) -> bool:
        """Stores `data` where nothing is, in one conditional write; returns False if the key exists already.

        A client of an object store repeats a request whose answer was lost, so False can also mean that this very call
        came first: whoever needs to tell writes something of his own and compares it.
        """

    @abc.abstractmethod
    def put_file(self, key: str, path: Path) -> None:
        """Stores a copy of a local file, in place of what was there."""

    @abc.abstractmethod
    def take_file(self, key: str, path: Path) -> None:
        """Stores a local file, in place of what was there, and removes it from `path`.

        No byte is copied where `path` lies in the `drafts` folder of a local store. If this fails, `path` may be gone.
        """

    @property
    @abc.abstractmethod
    def drafts(self) -> Path:
        """A folder on this machine for files that are being written, shared by all who have this store open."""

    @abc.abstractmethod
    def read(self, key: str, offset: int = 0, length: int | None = None) -> bytes:
        """Returns the bytes from `offset` on, at most `length` of them; none at or past the end.

        Raises:
            FileNotFoundError: nothing is stored there.
            ValueError: a negative offset or length.
        """

    @abc.abstractmethod
    def local_path(self, key: str) -> Path | None:
        """Returns the file's path, whether or not it exists, if the store is local: for mmap. Never write to it."""

    @abc.abstractmethod
    def size(self, key: str) -> int | None:
        """Returns the file's bytes, None where nothing is stored."""

    @abc.abstractmethod
    def list(self, prefix: str = "") -> Iterator[Stored]:
        """Yields the files whose keys begin with `prefix`, in no order. What changes meanwhile may or may not show."""

    @abc.abstractmethod
    def delete(self, key: str) -> None:
        """Removes a file; one that is absent is fine."""

    @abc.abstractmethod
    def drop_leftovers(self, age_s: float) -> int:
        """Removes drafts, and what crashes left half-written, older than `age_s`; returns how many files that were.

        An object store keeps interrupted uploads out of sight and drops them by its own lifecycle rule.
        """
