"""The Lua scripts, loaded once and called by name.

Knows nothing of what they do. Invariant: a call that returns was applied exactly once and, where asked, is on disk; one
that raises StoreUnavailableError may have been applied.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import redis.asyncio as aioredis
from redis.commands.core import AsyncScript

from darkroom.rpc.errors import StoreUnavailableError
from services.gateway.store.connection import ANSWER_TIMEOUT_S, Durability, answered

FOLDER = Path(__file__).parent / "lua"
NAMES = tuple(sorted(path.stem for path in FOLDER.glob("*.lua") if path.stem != "prelude"))

Argument = str | bytes | int | float


class Scripts:
    """All scripts of one server.

    Args:
        client: of the server.
        durability: how a write becomes safe there.
        folder: where the scripts are.
    """

    def __init__(self, client: aioredis.Redis, durability: Durability, folder: Path = FOLDER) -> None:
        self._client = client
        self._durability = durability
        prelude = (folder / "prelude.lua").read_text(encoding="utf-8")
        self._scripts: dict[str, AsyncScript] = {
            name: client.register_script(prelude + (folder / f"{name}.lua").read_text(encoding="utf-8"))
            for name in NAMES
        }

    async def call(self, name: str, *arguments: Argument, lasting: bool = False) -> list[Any]:
        """Runs a script.

        Args:
            name: file name without ending.
            arguments: its ARGV.
            lasting: the answer must not come before the write is on disk.

        Raises:
            StoreUnavailableError: no answer, or the write could not be made to last in time.
        """
        with answered():
            script = self._scripts[name]
            if not (lasting and self._durability is Durability.ON_REQUEST):
                return list(await script(args=arguments))
            return await self._call_and_wait(script, arguments)

    async def _call_and_wait(self, script: AsyncScript, arguments: tuple[Argument, ...]) -> list[Any]:
        """WAITAOF concerns the writes of its own connection: both commands go down one."""
        async with self._client.pipeline(transaction=False) as pipe:
            await script(args=arguments, client=pipe)
            pipe.execute_command("WAITAOF", 1, 0, int(ANSWER_TIMEOUT_S * 900))
            answer, waited = await pipe.execute()
        if int(waited[0]) < 1:
            raise StoreUnavailableError(
                "Redis did not write to disk in time; the call can be repeated", retry_after_s=1
            )
        return list(answer)
