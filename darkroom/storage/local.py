"""A store in a directory.

    store/
    ├── .drafts/          being written by somebody
    └── any/key           a file; beside it, while it is being written, .key.RANDOM

Knows nothing of URLs. Invariant: a file gets its key by one rename or one link, after its bytes are on disk, and the
directory is on disk before anybody is told.
"""

from __future__ import annotations

import contextlib
import datetime
import errno
import os
import secrets
import shutil
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from darkroom.storage.keys import check_key, check_prefix
from darkroom.storage.store import Store, Stored

DRAFTS = ".drafts"


class LocalStore(Store):
    """A directory; made where it is absent."""

    is_local = True

    def __init__(self, root: Path) -> None:
        self._root = root.absolute()
        self.url = str(self._root)
        _make_folder(self._root / DRAFTS)

    def create(self, key: str, data: bytes) -> bool:
        final = self._path(key)
        try:
            self._settle(final, lambda draft: _write(draft, data), os.link)
        except FileExistsError:
            return False
        return True

    def put_file(self, key: str, path: Path) -> None:
        self._settle(self._path(key), lambda draft: _copy(path, draft), os.rename)

    def take_file(self, key: str, path: Path) -> None:
        final = self._path(key)
        _make_folder(final.parent)
        _sync(path)
        try:
            os.rename(path, final)
        except OSError as fault:
            if fault.errno != errno.EXDEV:
                raise
            self.put_file(key, path)
            path.unlink()
        else:
            _sync(final.parent)

    @property
    def drafts(self) -> Path:
        return self._root / DRAFTS

    def read(self, key: str, offset: int = 0, length: int | None = None) -> bytes:
        if offset < 0 or (length is not None and length < 0):
            raise ValueError(f"offset {offset} and length {length} may not be negative")
        with self._path(key).open("rb") as file:
            file.seek(offset)
            return file.read(length)

    def local_path(self, key: str) -> Path:
        return self._path(key)

    def size(self, key: str) -> int | None:
        try:
            found = self._path(key).stat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        return found.st_size if stat.S_ISREG(found.st_mode) else None

    def list(self, prefix: str = "") -> Iterator[Stored]:
        folder, _, start = check_prefix(prefix).rpartition("/")
        for path in _files(self._root / folder, start):
            with contextlib.suppress(FileNotFoundError):
                found = path.stat()
                modified_at = datetime.datetime.fromtimestamp(found.st_mtime, datetime.UTC)
                yield Stored(path.relative_to(self._root).as_posix(), found.st_size, modified_at)

    def delete(self, key: str) -> None:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            self._path(key).unlink()

    def drop_leftovers(self, age_s: float) -> int:
        num_dropped = 0
        for parent, _, names in os.walk(self._root):
            drafts = (Path(parent, name) for name in names if name.startswith(".") or Path(parent).name == DRAFTS)
            for path in drafts:
                with contextlib.suppress(FileNotFoundError):
                    if time.time() - path.stat().st_mtime > age_s:
                        path.unlink()
                        num_dropped += 1
        return num_dropped

    def _path(self, key: str) -> Path:
        return self._root / check_key(key)

    def _settle(self, final: Path, write: Callable[[Path], None], place: Callable[[Path, Path], None]) -> None:
        """Writes a draft in the same folder, puts it on disk and gives it its name by `place`."""
        _make_folder(final.parent)
        draft = final.parent / f".{final.name}.{secrets.token_hex(8)}"
        try:
            write(draft)
            place(draft, final)
        finally:
            draft.unlink(missing_ok=True)
        _sync(final.parent)


def _write(path: Path, data: bytes) -> None:
    with path.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _copy(source: Path, path: Path) -> None:
    shutil.copyfile(source, path)
    _sync(path)


def _make_folder(folder: Path) -> None:
    """Makes a folder and those above it; each new name is on disk before the next."""
    if not folder.is_dir():
        _make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        _sync(folder.parent)


def _files(folder: Path, start: str = "") -> Iterator[Path]:
    """Yields the files below a folder, of its own entries only those that begin with `start`; none of the drafts."""
    try:
        entries = os.scandir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return
    with entries:
        for entry in entries:
            if entry.name.startswith(".") or not entry.name.startswith(start):
                continue
            if entry.is_dir():
                yield from _files(Path(entry.path))
            else:
                yield Path(entry.path)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
