"""`python -m services.worker.engine`: the process that owns the device. Started by the worker, not by hand."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from services.worker.engine.loop import Engine, serve


def make_engine() -> Engine:
    """Imports PyTorch and diffusers, which takes seconds, and returns the engine."""
    with _hushed_stderr():
        from services.worker.engine.diffusers_engine import DiffusersEngine
    return DiffusersEngine()


@contextlib.contextmanager
def _hushed_stderr() -> Iterator[None]:
    """Silences the process's stderr for the block: torchao and transformers print about kernels that this machine
    lacks, which are no log lines. An exception still tells itself once the block is over."""
    kept = os.dup(2)
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


if __name__ == "__main__":
    serve(make_engine)
