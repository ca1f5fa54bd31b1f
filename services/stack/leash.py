"""Holds one service and all that it starts, and lets none of it outlive the stack.

Run as a program between the stack and a service: `leash.py PARENT_PID GRACE_S COMMAND…`. It passes SIGTERM on (also
when the stack itself dies), kills what does not stop in time, and after the service has ended, however that was, ends
the processes that it left behind. SIGQUIT kills at once. Exits as the service did.
Standard library only, because it starts before everything else. Linux only: elsewhere it just passes signals on.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import time
from pathlib import Path
from types import FrameType

# linux/prctl.h
PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
LEFTOVER_GRACE_S = 5.0
POLL_S = 0.02


def set_process_option(option: int, value: int) -> None:
    """Calls prctl(2) where there is one."""
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def main(parent_pid: int, grace_s: float, command: list[str]) -> int:
    """Runs the command until it and everything that it started has ended; returns its exit status."""
    set_process_option(PR_SET_CHILD_SUBREAPER, 1)
    set_process_option(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent_pid:
        return 1
    child_pid = _start(command)

    def stop(number: int, frame: FrameType | None) -> None:
        _send(child_pid, signal.SIGTERM)
        signal.setitimer(signal.ITIMER_REAL, max(grace_s, 0.001))

    def kill(number: int, frame: FrameType | None) -> None:
        _send(child_pid, signal.SIGKILL)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, stop)
    for number in (signal.SIGALRM, signal.SIGQUIT):
        signal.signal(number, kill)
    status = _wait_for(child_pid)
    _end_leftovers()
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def _start(command: list[str]) -> int:
    leash_pid = os.getpid()
    child_pid = os.fork()
    if child_pid:
        return child_pid
    set_process_option(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != leash_pid:
        os._exit(1)
    # The stack's lock came along: it is held for as long as a leash lives, and is no business of the service.
    os.closerange(3, 256)
    try:
        os.execv(command[0], command)
    except OSError as failure:
        print(f"{command[0]}: {failure.strerror}", file=sys.stderr)
        os._exit(127)


def _wait_for(child_pid: int) -> int:
    """Waits for the service; orphans of its own that end meanwhile are reaped on the way."""
    while True:
        pid, status = os.wait()
        if pid == child_pid:
            return status


def _end_leftovers() -> None:
    """As their subreaper, this process is now the parent of whatever the service left."""
    for number, limit_s in ((signal.SIGTERM, LEFTOVER_GRACE_S), (signal.SIGKILL, LEFTOVER_GRACE_S)):
        until = time.monotonic() + limit_s
        signalled: set[int] = set()
        while time.monotonic() < until:
            try:
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            except ChildProcessError:
                return
            for pid in _children() - signalled:
                _send(pid, number)
                signalled.add(pid)
            time.sleep(POLL_S)


def _children() -> set[int]:
    own_pid, found = os.getpid(), set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                # "pid (name) state ppid …"; the name may hold anything, a parenthesis too.
                fields = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()
                if int(fields[1]) == own_pid:
                    found.add(int(entry.name))
    return found


def _send(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), float(sys.argv[2]), sys.argv[3:]))
