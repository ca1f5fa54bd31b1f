"""The Lua scripts, loaded once and called by name.

Knows nothing of what they do. Invariant: a call that returns was applied exactly once and, where asked, is on disk; one
that raises StoreUnavailableError may have been applied.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import redis.asyncio as aioredis
from redis.exceptions import NoScriptError

from services.gateway.store.connection import ANSWER_TIMEOUT_S, Durability, answered
from services.gateway.store.line import Argument, Line

FOLDER = Path(__file__).parent / "lua"
NAMES = tuple(sorted(path.stem for path in FOLDER.glob("*.lua") if path.stem != "prelude"))


class Scripts:
    """All scripts of one server.

    Args:
        client: of the server.
        durability: how a write becomes safe there.
        folder: where the scripts are.
    """

    def __init__(self, client: aioredis.Redis, durability: Durability, folder: Path = FOLDER) -> None:
        waits_ms = int(ANSWER_TIMEOUT_S * 900) if durability is Durability.ON_REQUEST else 0
        # Whatever else is read may go the same way.
        self.line = Line(client, waits_ms)
        prelude = (folder / "prelude.lua").read_text(encoding="utf-8")
        self._texts = {name: prelude + (folder / f"{name}.lua").read_text(encoding="utf-8") for name in NAMES}
        self._digests = {name: hashlib.sha1(text.encode()).hexdigest() for name, text in self._texts.items()}

    async def call(self, name: str, *arguments: Argument, lasting: bool = False) -> list[Any]:
        """Runs a script.

        Args:
            name: file name without ending.
            arguments: its ARGV.
            lasting: the answer must not come before the write is on disk.

        Raises:
            StoreUnavailableError: no answer, or the write could not be made to last in time.
        """
        command = self.command(name, *arguments)
        with answered():
            try:
                return list(await self.line.ask(*command, lasting=lasting))
            except NoScriptError:
                # A new server, or one that was restarted.
                await self.line.ask("SCRIPT LOAD", self.text(name))
                return list(await self.line.ask(*command, lasting=lasting))

    def command(self, name: str, *arguments: Argument) -> tuple[Argument, ...]:
        """Returns what runs a script that the server knows."""
        return ("EVALSHA", self._digests[name], 0, *arguments)

    def text(self, name: str) -> str:
        """Returns a script as the server gets it."""
        return self._texts[name]
