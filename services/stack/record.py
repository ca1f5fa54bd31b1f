"""What the data folder tells of a running stack: a lock that only one stack can hold, and stack.json.

Invariant: stack.json is whole or absent, and while it is there the lock is held.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

FILE_NAME = "stack.json"
# Longest that the services of a killed stack are waited for: their grace, and what a leash adds.
REMAINS_S = 45.0
POLL_S = 0.1


class DataFolderBusyError(Exception):
    """Another stack uses the data folder."""


@contextlib.contextmanager
def hold_folder(data_dir: Path) -> Iterator[int]:
    """Holds the data folder for this process, and removes stack.json at the end. Yields the lock's descriptor.

    A stack that was killed is waited for: its services still hold the lock while they stop.

    Raises:
        DataFolderBusyError: another stack holds it.
    """
    data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    with open(data_dir / "stack.lock", "w") as lock:
        until = time.monotonic() + REMAINS_S
        while not _try_to_lock(lock):
            record = read_record(data_dir) or {}
            if _is_running(int(record.get("pid", os.getpid()))) or time.monotonic() > until:
                raise DataFolderBusyError(_describe_holder(data_dir, record))
            time.sleep(POLL_S)
        try:
            yield lock.fileno()
        finally:
            (data_dir / FILE_NAME).unlink(missing_ok=True)


def write_record(data_dir: Path, record: dict[str, Any]) -> None:
    """Writes stack.json in one step."""
    temporary = data_dir / f".{FILE_NAME}.part"
    temporary.write_text(json.dumps(record, indent=2) + "\n")
    os.replace(temporary, data_dir / FILE_NAME)


def read_record(data_dir: Path) -> dict[str, Any] | None:
    """Returns what the running stack wrote, or None."""
    try:
        record = json.loads((data_dir / FILE_NAME).read_text())
    except (OSError, ValueError):
        return None
    return record if isinstance(record, dict) else None


def _try_to_lock(lock: TextIO) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _describe_holder(data_dir: Path, record: dict[str, Any]) -> str:
    gateway = record.get("gateway", {}).get("address", "an address not told yet")
    return (
        f"a stack (process {record.get('pid', 'unknown')}) runs with {data_dir} already, its gateway at {gateway}; "
        "stop it, or give this one another --data-dir and --listen"
    )
