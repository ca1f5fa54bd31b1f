"""Bytes and milliseconds of a call on a CUDA device.

Knows nothing of models. Invariant: a time is taken after synchronising; a peak is of calls after the first.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from services.worker.engine.device import give_back


def settle() -> None:
    """Gives cached blocks back, the host's pinned ones too, and begins a new peak."""
    gc.collect()
    give_back(torch.device("cuda"))
    torch.cuda.reset_peak_memory_stats()


def measure_calls(
    call: Callable[[Any], Any], make_inputs: Callable[[], Any], count: int, bytes_before: int
) -> dict[str, Any]:
    """Calls once to warm up, then `count` times; returns bytes allocated and the median time of a call.

    Args:
        call: on the inputs.
        make_inputs: its result counts for the peak, not for what rests.
        count: calls.
        bytes_before: allocated before the model was there: workspaces of the matrix libraries. Not at rest, but in the
            peak.
    """
    settle()
    rest_bytes, inputs = torch.cuda.memory_allocated() - bytes_before, make_inputs()
    with torch.inference_mode():
        first_s = _time(call, inputs)
        first_peak = torch.cuda.max_memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        times_ms = [_time(call, inputs) * 1000 for _ in range(count)]
    return {
        "workspace_bytes": bytes_before,
        "rest_bytes": rest_bytes,
        "peak_bytes": torch.cuda.max_memory_allocated(),
        "first_peak_bytes": first_peak,
        "reserved_bytes": torch.cuda.max_memory_reserved(),
        "first_s": round(first_s, 2),
        "call_ms": round(statistics.median(times_ms), 2),
    }


def _time(call: Callable[[Any], Any], inputs: Any) -> float:
    began = time.perf_counter()
    call(inputs)
    torch.cuda.synchronize()
    return time.perf_counter() - began
