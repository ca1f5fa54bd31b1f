"""`python -m services.worker.engine`: the process that owns the device. Started by the worker, not by hand."""

from __future__ import annotations

from services.worker.engine.diffusers_engine import DiffusersEngine
from services.worker.engine.loop import serve

if __name__ == "__main__":
    serve(DiffusersEngine)
