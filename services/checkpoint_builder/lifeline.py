"""A child process that ends when its parent does, however that ended.

Knows nothing of what either does. Linux only; elsewhere a child outlives a parent that was killed.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1  # prctl(2)


def end_with_parent() -> None:
    """Has the kernel kill this process when the thread that started it ends."""
    if sys.platform != "linux":
        return
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() == 1:
        # It ended before the kernel was asked.
        os.kill(os.getpid(), signal.SIGKILL)
