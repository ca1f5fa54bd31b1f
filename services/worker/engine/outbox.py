"""What the engine tells its supervisor: progress in company, everything else at once.

Every message that leaves wakes a chain of processes, up to the watcher; on a processor that the engine computes on,
they take their time from its threads, and all of these wait for the slowest. So the first progress goes at once, and
what can wait after it, or after anything else, waits for more. Knows nothing of what the events mean. Invariants: every
event is sent once and in order; none waits longer than the pause.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable

from darkroom.v1 import engine_pb2
from services.worker.wire import pack

# Five times a second is as often as somebody can watch a bar.
PAUSE_S = 0.2


class Outbox:
    """The sending end of the engine's socket, for all of its threads.

    Args:
        link: to the supervisor.
        when_lost: called by whichever thread finds that the supervisor is gone; it need not return.
        pause_s: longest that progress waits for more.
    """

    def __init__(self, link: socket.socket, when_lost: Callable[[], None], pause_s: float = PAUSE_S) -> None:
        self._link = link
        self._when_lost = when_lost
        self._pause_s = pause_s
        self._held = bytearray()
        self._quiet_until = 0.0
        self._changed = threading.Condition()
        threading.Thread(target=self._send_in_time, name="outbox", daemon=True).start()

    def send(self, event: engine_pb2.EngineEvent, *, can_wait: bool = False) -> None:
        """Sends an event, after those that wait; one that `can_wait` may wait for more itself."""
        with self._changed:
            self._held += pack(event)
            if not can_wait or time.monotonic() >= self._quiet_until:
                self._quiet_until = time.monotonic() + self._pause_s
                self._send_held()
            else:
                self._changed.notify()

    def _send_in_time(self) -> None:
        with self._changed:
            while True:
                self._changed.wait_for(lambda: self._held)
                left_s = self._quiet_until - time.monotonic()
                if left_s > 0:
                    self._changed.wait(left_s)
                elif self._held:
                    self._quiet_until = time.monotonic() + self._pause_s
                    self._send_held()

    def _send_held(self) -> None:
        try:
            self._link.sendall(self._held)
        except OSError:
            self._when_lost()
        self._held.clear()
