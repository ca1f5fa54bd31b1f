"""A service started as a child process: for one call of the command, for a build's gates, for tests.

Knows of a service only its module and the log line that tells its address. Invariant: it has ended when the block is
left.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

POLL_S = 0.02
LAST_WORDS_BYTES = 2000


@dataclass(frozen=True)
class ChildService:
    """A service that serves."""

    address: str
    process: asyncio.subprocess.Process


@contextlib.asynccontextmanager
async def running_service(
    module: str,
    listen_variable: str,
    silence: Exception,
    environment: Mapping[str, str] | None = None,
    log_path: Path | None = None,
    *,
    start_s: float = 20.0,
    stop_s: float = 5.0,
) -> AsyncIterator[ChildService]:
    """Starts `python -m MODULE` on a free port of loopback and yields it once it serves.

    Args:
        module: of the service.
        listen_variable: the setting that holds its address.
        silence: raised where it does not come up, with its last words as a note.
        environment: more settings.
        log_path: file that its log is appended to; None keeps the log for as long as the block lasts.
        start_s: how long it may take to serve.
        stop_s: how long it may take to end, before it is killed.
    """
    with _open_log(log_path) as log:
        log_start = os.fstat(log.fileno()).st_size
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", module),
            env={**os.environ, **(environment or {}), listen_variable: "127.0.0.1:0"},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
        try:
            yield ChildService(await _find_address(process, log, log_start, silence, start_s), process)
        finally:
            await _end(process, stop_s)


def _open_log(path: Path | None) -> BinaryIO:
    if path is None:
        return tempfile.TemporaryFile("a+b")  # type: ignore[return-value]
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    return path.open("a+b")


async def _find_address(
    process: asyncio.subprocess.Process, log: BinaryIO, log_start: int, silence: Exception, start_s: float
) -> str:
    ends_at = asyncio.get_running_loop().time() + start_s
    while process.returncode is None and asyncio.get_running_loop().time() < ends_at:
        if (address := _address_in(_said(log, log_start))) is not None:
            return address
        await asyncio.sleep(POLL_S)
    silence.add_note(_said(log, log_start)[-LAST_WORDS_BYTES:].decode(errors="replace"))
    raise silence


def _said(log: BinaryIO, start: int) -> bytes:
    return os.pread(log.fileno(), os.fstat(log.fileno()).st_size - start, start)


def _address_in(said: bytes) -> str | None:
    for line in said.splitlines(keepends=True):
        if line.endswith(b"\n") and b'"serving"' in line:
            entry = json.loads(line)
            if entry.get("event") == "serving":
                return str(entry["address"])
    return None


async def _end(process: asyncio.subprocess.Process, stop_s: float) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.terminate()
    try:
        async with asyncio.timeout(stop_s):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()
