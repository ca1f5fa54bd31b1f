"""All workers: found by a list or by a name that is looked up again, watched for as long as they are there.

Knows nothing of jobs. Invariant: one seat an address; a seat is given up only when its name is gone and it is silent.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable

from darkroom.rpc.errors import NoWorkerError, UnknownWorkerError
from darkroom.rpc.logs import log
from services.gateway.workers.seat import Seat

RESOLVE_S = 10.0

Attend = Callable[[Seat], Awaitable[None]]


class Pool:
    """The workers of one gateway.

    Args:
        targets: "host:port", "unix:/path" or "dns:///name:port", comma separated.
    """

    def __init__(self, targets: str) -> None:
        self._targets = [target.strip() for target in targets.split(",") if target.strip()]
        self._seats: dict[str, Seat] = {}
        self._tasks: dict[str, list[asyncio.Task[None]]] = {}

    @property
    def seats(self) -> list[Seat]:
        """By address."""
        return [self._seats[address] for address in sorted(self._seats)]

    async def run(self, attend: Attend) -> None:
        """Keeps seats and their attendants until cancelled."""
        try:
            while True:
                found = await self._addresses()
                for address in found - self._seats.keys():
                    self._add(Seat(address), attend)
                for address in self._seats.keys() - found:
                    if not self._seats[address].is_reachable:
                        await self._remove(address)
                await asyncio.sleep(RESOLVE_S)
        finally:
            for address in list(self._seats):
                await self._remove(address)

    def find(self, worker_id: str) -> Seat:
        """Returns a worker by its id. Raises UnknownWorkerError."""
        for seat in self.seats:
            if seat.worker_id == worker_id:
                return seat
        known = ", ".join(seat.worker_id for seat in self.seats if seat.worker_id) or "none"
        raise UnknownWorkerError(f"no worker is called {worker_id!r}; known: {known}", worker_id=worker_id)

    def free(self) -> Seat:
        """Returns a worker that could take a job, an empty one first. Raises NoWorkerError."""
        candidates = [seat for seat in self.seats if seat.is_free]
        if not candidates:
            raise NoWorkerError(self.explain() or "every worker is busy; try again later", retry_after_s=2.0)
        return min(candidates, key=lambda seat: seat.loaded_plan is not None)

    def explain(self) -> str:
        """Returns why no job can run now; "" where a worker is there."""
        if not self._seats:
            return "no worker is configured or found; set DARKROOM_GATEWAY_WORKERS"
        if any(seat.is_reachable for seat in self.seats):
            return ""
        return "no worker answers: " + "; ".join(f"{seat.address}: {seat.problem}"[:200] for seat in self.seats[:4])

    def _add(self, seat: Seat, attend: Attend) -> None:
        log.info("worker_added", address=seat.address)
        self._seats[seat.address] = seat
        self._tasks[seat.address] = [
            asyncio.create_task(seat.keep_looking(), name=f"look-{seat.address}"),
            asyncio.create_task(_run(attend, seat), name=f"attend-{seat.address}"),
        ]

    async def _remove(self, address: str) -> None:
        seat = self._seats.pop(address)
        tasks = self._tasks.pop(address)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await seat.client.close()
        log.info("worker_removed", address=address)

    async def _addresses(self) -> set[str]:
        found: set[str] = set()
        for target in self._targets:
            if target.startswith("dns:///"):
                found.update(await _resolve(target.removeprefix("dns:///")))
            else:
                found.add(target)
        return found


async def _run(attend: Attend, seat: Seat) -> None:
    await attend(seat)


async def _resolve(target: str) -> set[str]:
    """Returns the addresses behind "name:port" now; none if the name is unknown."""
    host, _, port = target.rpartition(":")
    try:
        answers = await asyncio.get_running_loop().getaddrinfo(host, int(port), type=socket.SOCK_STREAM)
    except (OSError, ValueError) as fault:
        log.warning("worker_name_unknown", name=target, problem=str(fault))
        return set()
    hosts = {str(where[0]) for *_, where in answers}
    return {f"[{found}]:{port}" if ":" in found else f"{found}:{port}" for found in hosts}
