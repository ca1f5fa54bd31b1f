"""One run of the making process: started, listened to, ended.

Spawned, never forked: this process runs gRPC threads. Knows nothing of what is made. Invariant: when the block is left,
the process is gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path

from google.protobuf import json_format

from darkroom.rpc.errors import EngineDiedError, EngineHungError, error_from_message
from darkroom.v1 import build_pb2
from services.checkpoint_builder.config import REPOSITORY, BuilderSettings

MODULE = "services.checkpoint_builder.making"
# A line names one layer; errors are cut long before this.
LINE_BYTES = 2**20


async def make(order: build_pb2.BuildOrder, settings: BuilderSettings, folder: Path) -> AsyncIterator[build_pb2.Build]:
    """Runs an order to its end, yielding what changed.

    Raises:
        DarkroomError: as the process told it.
        EngineDiedError: it ended without telling why.
        EngineHungError: it was silent for too long, and was killed.
    """
    ours, theirs = os.pipe()
    command = (
        *(sys.executable, "-m", MODULE, "--folder", str(folder), "--events", str(theirs)),
        *("--order", json_format.MessageToJson(order, indent=None)),
        *("--settings", settings.model_dump_json()),
    )
    paths = [str(REPOSITORY), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
    try:
        process = await asyncio.create_subprocess_exec(
            *command, env=environment, pass_fds=[theirs], stdin=asyncio.subprocess.DEVNULL
        )
    except BaseException:
        os.close(ours)
        raise
    finally:
        os.close(theirs)
    try:
        async for build in _lines(ours, settings.builder_silence_s):
            yield build
        if await process.wait():
            code = process.returncode or 0
            how = f"signal {-code}" if code < 0 else f"status {code}"
            raise EngineDiedError(f"the process that builds ended with {how}; the builder's log tells more")
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def _lines(descriptor: int, silence_s: float) -> AsyncIterator[build_pb2.Build]:
    reader = asyncio.StreamReader(limit=LINE_BYTES)
    protocol = asyncio.StreamReaderProtocol(reader)
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: protocol, os.fdopen(descriptor, "rb", buffering=0)
    )
    try:
        while True:
            try:
                async with asyncio.timeout(silence_s):
                    line = await reader.readline()
            except TimeoutError:
                raise EngineHungError(
                    f"the process that builds said nothing for {silence_s:.0f} s; it was killed",
                    silence_seconds=silence_s,
                ) from None
            if not line:
                return
            build = json_format.Parse(line, build_pb2.Build())
            if build.HasField("error"):
                raise error_from_message(build.error)
            yield build
    finally:
        transport.close()
