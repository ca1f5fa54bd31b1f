"""`python -m services.worker.engine.probing DEVICE ITEM...`: tries each item, and tells before and after.

An item is a scheme's number, 0 for compiling, or "name@version" of an attention kernel.
"""

from __future__ import annotations

import json
import sys

import torch

from darkroom.v1 import device_pb2
from services.worker.engine.hush import hushed_stderr
from services.worker.engine.probing.kernels import BACKENDS, kernel_name
from services.worker.engine.probing.trial import try_compiling, try_kernel, try_scheme


def main() -> None:
    """Tries the items in order, telling which one begins, so that a crash has a name."""
    device, items = torch.device(sys.argv[1]), sys.argv[2:]
    torch.set_num_threads(1)
    for item in items:
        print(json.dumps({"begins": item}), flush=True)
        with hushed_stderr():
            probe = _try(item, device)
        answer = None if probe is None else {"works": probe.works, "reason": probe.reason}
        print(json.dumps({"ended": item, "answer": answer}), flush=True)


def _try(item: str, device: torch.device) -> device_pb2.SchemeProbe | None:
    if name := kernel_name(item):
        return try_kernel(BACKENDS[name], device)
    return try_scheme(int(item), device) if int(item) else try_compiling(device)


if __name__ == "__main__":
    main()
