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


def settle() -> None:
    """Gives cached blocks back and begins a new peak."""
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()


def measure_calls(call: Callable[[Any], Any], make_inputs: Callable[[], Any], count: int) -> dict[str, Any]:
    """Calls once to warm up, then `count` times; returns bytes allocated and the median time of a call.

    At rest is before the inputs are made; a peak counts them.
    """
    settle()
    rest_bytes, inputs = torch.cuda.memory_allocated(), make_inputs()
    with torch.inference_mode():
        first_s = _time(call, inputs)
        first_peak = torch.cuda.max_memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        times_ms = [_time(call, inputs) * 1000 for _ in range(count)]
    return {
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
