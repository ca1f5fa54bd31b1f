"""A store in a bucket, through fsspec.

Knows nothing of any vendor but how each says that a conditional write was refused. Invariants: only file systems whose
conditional write is the server's own are taken, and none is trusted before it has refused a second write; listings are
never cached.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import secrets
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec

from darkroom.storage.keys import check_key, check_prefix
from darkroom.storage.local import LocalStore
from darkroom.storage.store import Store, Stored

# Protocols whose `pipe_file(…, mode="create")` is decided by the server: S3's If-None-Match (s3fs), Google's
# ifGenerationMatch=0 (gcsfs), Azure's If-None-Match (adlfs). fsspec's own default looks first and then writes, which
# two writers survive. `memory` lives in one process and is for tests.
CONDITIONAL = {
    "s3": "darkroom[s3]",
    "s3a": "darkroom[s3]",
    "gs": "gcsfs",
    "gcs": "gcsfs",
    "az": "adlfs",
    "abfs": "adlfs",
    "abfss": "adlfs",
    "memory": "fsspec",
}
# S3 answers 409 where a delete comes between, and wants the write repeated.
NUM_CONFLICTS = 5
CONFLICT_PAUSE_S = 0.2
TIMES = ("LastModified", "mtime", "updated", "last_modified")
PROBE = "_conditional-write-probe"
# botocore waits a minute for a server that says nothing, five times, and s3fs repeats that five times.
S3_LIMITS = {"connect_timeout": 5, "read_timeout": 30, "retries": {"total_max_attempts": 2}}
_memory_lock = threading.Lock()


class ObjectStore(Store):
    """A folder of a bucket. Credentials and endpoints come from the environment, as each vendor's client reads them."""

    is_local = False

    def __init__(self, url: str) -> None:
        protocol, _, rest = url.partition("://")
        if protocol not in CONDITIONAL:
            raise ValueError(
                f"{url!r}: {protocol} has no conditional write that two writers could rely on; "
                f"a directory or one of {', '.join(sorted(CONDITIONAL))} is needed"
            )
        if not rest.strip("/"):
            raise ValueError(f"{url!r} names no bucket: {protocol}://BUCKET/FOLDER is needed")
        try:
            self._files: Any = fsspec.filesystem(protocol, skip_instance_cache=True, **_options(protocol))
        except ImportError as missing:
            text = f"{url!r} needs a package that is not installed: pip install '{CONDITIONAL[protocol]}'"
            raise ImportError(text) from missing
        self._protocol = protocol
        self.url = url.rstrip("/")
        self._root = str(self._files._strip_protocol(self.url))
        self._guard = _memory_lock if protocol == "memory" else contextlib.nullcontext()
        self._is_probed = False
        self._drafts = LocalStore(_own_folder(f"darkroom-drafts-{os.getuid()}")).drafts

    def create(self, key: str, data: bytes) -> bool:
        place = self._place(key)
        with self._faults():
            self._probe()
            return self._create(place, data)

    def put_file(self, key: str, path: Path) -> None:
        place = self._place(key)
        with self._faults():
            self._files.put_file(str(path), place)

    def take_file(self, key: str, path: Path) -> None:
        self.put_file(key, path)
        path.unlink()

    @property
    def drafts(self) -> Path:
        return self._drafts

    def read(self, key: str, offset: int = 0, length: int | None = None) -> bytes:
        if offset < 0 or (length is not None and length < 0):
            raise ValueError(f"offset {offset} and length {length} may not be negative")
        place = self._place(key)
        if length == 0:
            self._size_of(key)
            return b""
        try:
            with self._faults():
                end = None if length is None else offset + length
                data: bytes = self._files.cat_file(place, start=offset, end=end)
        except FileNotFoundError:
            raise
        except OSError:
            if offset >= self._size_of(key):  # servers refuse a range that is empty
                return b""
            raise
        return data

    def local_path(self, key: str) -> None:
        check_key(key)

    def size(self, key: str) -> int | None:
        place = self._place(key)
        with self._faults():
            try:
                found = self._files.info(place)
            except FileNotFoundError:
                return None
        return int(found["size"]) if found["type"] == "file" else None

    def list(self, prefix: str = "") -> Iterator[Stored]:
        folder, _, start = check_prefix(prefix).rpartition("/")
        # Lets the server select; the memory file system can't, so what comes is looked at as well.
        selection = {"prefix": start} if start and self._protocol != "memory" else {}
        with self._faults():
            try:
                found = self._files.find(f"{self._root}/{folder}".rstrip("/"), detail=True, **selection)
            except FileNotFoundError:
                return
            for place, details in found.items():
                key = str(place).removeprefix(self._root).lstrip("/")
                if key.startswith(prefix) and not key.startswith(PROBE):
                    yield Stored(key, int(details["size"]), self._modified_at(place, details))

    def delete(self, key: str) -> None:
        place = self._place(key)
        with self._faults(), contextlib.suppress(FileNotFoundError):
            self._files.rm_file(place)

    def drop_leftovers(self, age_s: float) -> int:
        return LocalStore(self._drafts.parent).drop_leftovers(age_s)

    def _place(self, key: str) -> str:
        return f"{self._root}/{check_key(key)}"

    def _size_of(self, key: str) -> int:
        size = self.size(key)
        if size is None:
            raise FileNotFoundError(f"{self.url}/{key} does not exist")
        return size

    def _create(self, place: str, data: bytes) -> bool:
        for conflict in range(NUM_CONFLICTS):
            time.sleep(conflict * CONFLICT_PAUSE_S)
            try:
                with self._guard:
                    self._files.pipe_file(place, data, mode="create")
            except FileExistsError:
                return False
            except OSError as fault:
                code = _code(fault)
                if code == "PreconditionFailed":  # servers that do not say which condition it was: we send only one
                    return False
                if code != "ConditionalRequestConflict":
                    raise
            else:
                return True
        raise OSError(f"{place}: the server answered with a conflict {NUM_CONFLICTS} times")

    def _probe(self) -> None:
        """Writes one key twice. A server that takes both ignores the condition, as some that speak S3 do."""
        if self._is_probed:
            return
        place = f"{self._root}/{PROBE}-{secrets.token_hex(8)}"
        try:
            self._create(place, b"1")
            is_ignored = self._create(place, b"2")
        finally:
            with contextlib.suppress(FileNotFoundError):
                self._files.rm_file(place)
        if is_ignored:
            raise OSError(f"{self.url}: this server ignores the condition of a conditional write; it can't be used")
        self._is_probed = True

    def _modified_at(self, place: str, details: dict[str, Any]) -> datetime.datetime:
        """Finds the time in a listing under the name that s3fs, gcsfs or adlfs gives it; asks where there is none."""
        value = next((details[name] for name in TIMES if details.get(name)), None) or self._files.modified(place)
        if isinstance(value, str):
            value = datetime.datetime.fromisoformat(value)
        assert isinstance(value, datetime.datetime)
        return value.replace(tzinfo=datetime.UTC) if value.tzinfo is None else value.astimezone(datetime.UTC)

    @contextlib.contextmanager
    def _faults(self) -> Iterator[None]:
        """Turns what a vendor's client raises into OSError. They have no base class in common, so all are caught."""
        try:
            yield
        except (OSError, ValueError):
            raise
        except Exception as fault:
            raise OSError(f"{self.url}: {type(fault).__name__}: {fault}") from fault


def _options(protocol: str) -> dict[str, Any]:
    if protocol == "memory":
        return {}
    return {"use_listings_cache": False, **({"config_kwargs": S3_LIMITS} if protocol in ("s3", "s3a") else {})}


def _code(fault: OSError) -> str:
    """Returns S3's code of an error, as botocore keeps it in the cause; empty for others."""
    response = getattr(fault.__cause__, "response", None) or {}
    return str(response.get("Error", {}).get("Code", ""))


def _own_folder(name: str) -> Path:
    """Returns a folder for temporary files (TMPDIR) that is ours alone.

    Raises:
        PermissionError: somebody else made it.
    """
    folder = Path(tempfile.gettempdir(), name)
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.is_symlink() or folder.stat().st_uid != os.getuid():
        raise PermissionError(f"{folder} belongs to somebody else: set TMPDIR to a folder of your own")
    return folder
