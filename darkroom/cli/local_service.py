"""A service started for one call, for machines where none runs.

Knows of a service only its command line and the log line that tells its address. Invariant: it has ended when the block
is left.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

START_S = 20.0
STOP_S = 5.0


@contextlib.asynccontextmanager
async def running_service(
    name: str,
    listen_variable: str,
    silence: Exception,
    environment: Mapping[str, str] | None = None,
    log: Path | None = None,
) -> AsyncIterator[str]:
    """Starts `python -m services.NAME` on a free port and yields its address.

    Args:
        name: of the service.
        listen_variable: the setting that holds its address.
        silence: raised where it does not come up.
        environment: more settings.
        log: file that its log is appended to; None drops it.
    """
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", f"services.{name}"),
        env={**os.environ, **(environment or {}), listen_variable: "127.0.0.1:0"},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stderr is not None
    reading: asyncio.Task[None] | None = None
    try:
        address = await _find_address(process.stderr, silence, log)
        # A log that nobody reads would stop the service once the pipe is full.
        reading = asyncio.create_task(_drain(process.stderr, log))
        yield address
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        try:
            async with asyncio.timeout(STOP_S):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()
        if reading is not None:
            await reading


async def _find_address(lines: asyncio.StreamReader, silence: Exception, log: Path | None) -> str:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(START_S):
            async for line in lines:
                _keep(line, log)
                with contextlib.suppress(ValueError):
                    entry = json.loads(line)
                    if isinstance(entry, dict) and entry.get("event") == "serving":
                        return str(entry["address"])
    raise silence


async def _drain(lines: asyncio.StreamReader, log: Path | None) -> None:
    while data := await lines.read(65536):
        _keep(data, log)


def _keep(data: bytes, log: Path | None) -> None:
    if log is not None:
        log.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with log.open("ab") as file:
            file.write(data)
