"""The engine's outbox: progress in company, everything else at once, all of it once and in order."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import pytest

from darkroom.v1 import engine_pb2
from services.worker.engine.outbox import Outbox
from services.worker.wire import receive_message

PAUSE_S = 0.3
FAR_S = 60.0


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    theirs.settimeout(5)
    yield ours, theirs
    theirs.close()


def outbox_on(link: socket.socket, pause_s: float) -> Outbox:
    return Outbox(link, lambda: None, pause_s)


def event(number: int) -> engine_pb2.EngineEvent:
    return engine_pb2.EngineEvent(command_id=number)


def read(link: socket.socket) -> int:
    message = receive_message(link, engine_pb2.EngineEvent)
    assert message is not None
    return message.command_id


def is_quiet(link: socket.socket) -> bool:
    link.setblocking(False)
    try:
        return not link.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return True
    finally:
        link.settimeout(5)


def test_the_first_progress_goes_at_once_and_the_next_waits(ends: tuple[socket.socket, socket.socket]) -> None:
    outbox = outbox_on(ends[0], FAR_S)
    outbox.send(event(1), can_wait=True)
    outbox.send(event(2), can_wait=True)
    assert read(ends[1]) == 1
    assert is_quiet(ends[1])


def test_what_waits_goes_by_itself_after_the_pause(ends: tuple[socket.socket, socket.socket]) -> None:
    outbox = outbox_on(ends[0], PAUSE_S)
    began_at = time.monotonic()
    for number in (1, 2, 3):
        outbox.send(event(number), can_wait=True)
    assert [read(ends[1]) for _ in range(3)] == [1, 2, 3]
    assert time.monotonic() - began_at >= PAUSE_S * 0.9


def test_what_can_not_wait_takes_along_what_waits_in_order(ends: tuple[socket.socket, socket.socket]) -> None:
    outbox = outbox_on(ends[0], FAR_S)
    for number in (1, 2, 3):
        outbox.send(event(number), can_wait=True)
    outbox.send(event(4))
    assert [read(ends[1]) for _ in range(4)] == [1, 2, 3, 4]


def test_what_can_wait_after_something_urgent_waits(ends: tuple[socket.socket, socket.socket]) -> None:
    outbox = outbox_on(ends[0], FAR_S)
    outbox.send(event(1))
    outbox.send(event(2), can_wait=True)
    assert read(ends[1]) == 1
    assert is_quiet(ends[1])


@pytest.mark.parametrize("can_wait", [True, False])
def test_whoever_finds_the_supervisor_gone_says_so(ends: tuple[socket.socket, socket.socket], can_wait: bool) -> None:
    lost = threading.Event()
    outbox = Outbox(ends[0], lost.set, PAUSE_S)
    outbox.send(event(1), can_wait=True)
    ends[1].close()
    outbox.send(event(2), can_wait=can_wait)
    assert lost.wait(5)
