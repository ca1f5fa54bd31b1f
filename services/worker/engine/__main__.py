"""`python -m services.worker.engine`: the process that owns the device. Started by the worker, not by hand."""

from __future__ import annotations

from services.worker.engine.hush import hushed_stderr
from services.worker.engine.loop import Engine, serve


def make_engine() -> Engine:
    """Imports PyTorch and diffusers, which takes seconds, and returns the engine."""
    with hushed_stderr():
        from services.worker.engine.diffusers_engine import DiffusersEngine
    return DiffusersEngine()


if __name__ == "__main__":
    serve(make_engine)
