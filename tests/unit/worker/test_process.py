"""How an engine's end is told, what a frame is, and what the supervisor may import."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys

import pytest

from darkroom.v1 import engine_pb2
from services.worker.engine_process import explain_exit
from services.worker.wire import pack, read_message, receive_message


@pytest.mark.parametrize(
    ("code", "facts", "said"),
    [
        (137, {"exit_code": "137"}, "exit code 137"),
        (0, {"exit_code": "0"}, "exit code 0"),
        (-9, {"exit_code": "-9", "signal": "SIGKILL"}, "out-of-memory killer"),
        (-11, {"exit_code": "-11", "signal": "SIGSEGV"}, "SIGSEGV"),
        (-99, {"exit_code": "-99", "signal": "signal 99"}, "signal 99"),
    ],
)
def test_an_end_is_explained_by_its_code_or_signal(code: int, facts: dict[str, str], said: str) -> None:
    error = explain_exit(code)
    assert error.facts == facts
    assert said in error.message


async def test_a_frame_is_read_whole_or_not_at_all() -> None:
    command = engine_pb2.EngineCommand(command_id=7, cancel=engine_pb2.EngineCancel(target_id=3, job_id="a"))
    reader = asyncio.StreamReader()
    reader.feed_data(pack(command) + pack(command)[:-1])
    reader.feed_eof()
    assert await read_message(reader, engine_pb2.EngineCommand) == command
    assert await read_message(reader, engine_pb2.EngineCommand) is None
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(pack(command) + pack(command)[:5])
        ours.shutdown(socket.SHUT_WR)
        assert receive_message(theirs, engine_pb2.EngineCommand) == command
        assert receive_message(theirs, engine_pb2.EngineCommand) is None


def test_importing_the_whole_supervisor_imports_no_torch_and_nothing_of_the_engine() -> None:
    code = (
        "import sys, services.worker.__main__\n"
        "heavy = {'torch', 'diffusers', 'transformers', 'redis', 'numpy', 'PIL'}\n"
        "engine = [name for name in sys.modules if name.startswith('services.worker.engine.')]\n"
        "print(sorted(heavy.intersection(sys.modules)), engine)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[] []"


def test_the_rehearsal_engine_imports_no_torch() -> None:
    code = "import sys, tests.engines.rehearsal\nprint('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_help_lists_the_settings_and_shows_examples() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "services.worker", "--help"], capture_output=True, text=True, check=True
    )
    assert "DARKROOM_WORKER_DEVICE" in done.stdout
    assert "examples:" in done.stdout
