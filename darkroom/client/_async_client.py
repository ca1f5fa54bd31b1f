"""The awaited client: a connection, and the errands that run on it.

Knows nothing of how a call is made or resumed. Invariant: a client needs no loop until its first call.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Self

from darkroom.client._address import find_address, find_tenant
from darkroom.client._connection import Connection
from darkroom.client._jobs import JobMethods
from darkroom.client._models import ModelMethods
from darkroom.rpc.errors import DarkroomError


class AsyncClient(JobMethods, ModelMethods):
    """A client of one or more gateways, for asyncio.

        async with AsyncClient("127.0.0.1:50051") as darkroom:
            picture = await darkroom.generate("a red apple", seed=7)
            picture.save("apple.png")

    Args:
        address: "host:port", "dns:///name:port" or a list of IP addresses with ports; where absent, DARKROOM_ADDRESS,
            else a gateway on this machine.
        timeout_s: how long one call may take. Watching and loading have limits of their own.
        patience_s: how long a gateway that has answered before is looked for again when it is gone. Zero raises at
            once. A gateway that never answered raises at once in any case: see `wait_until_ready`.
        tenant: on whose behalf jobs are submitted: tenants share the workers in turns. Where absent, DARKROOM_TENANT,
            else "default".
    """

    def __init__(
        self,
        address: str | None = None,
        *,
        timeout_s: float = 20.0,
        patience_s: float = 30.0,
        tenant: str | None = None,
    ) -> None:
        self._connection = Connection(find_address(address), timeout_s, patience_s, find_tenant(tenant))

    @property
    def address(self) -> str:
        """Where the gateway is looked for."""
        return self._connection.address

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Ends what is under way."""
        await self._connection.close()

    async def is_ready(self) -> bool:
        """Tells whether the gateway says that it can take work. Raises UnavailableError where none answers."""
        return await self._connection.is_ready()

    async def wait_until_ready(self, timeout_s: float = 30.0) -> None:
        """Waits for a gateway that is still starting.

        Raises:
            TimeoutError: it was not ready in time.
        """
        async with asyncio.timeout(timeout_s):
            while True:
                with contextlib.suppress(DarkroomError):
                    if await self._connection.is_ready():
                        return
                await asyncio.sleep(0.1)
