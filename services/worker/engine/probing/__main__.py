"""`python -m services.worker.engine.probing DEVICE SCHEME...`: tries schemes (0: compiling), telling each."""

from __future__ import annotations

import json
import sys

import torch

from services.worker.engine.hush import hushed_stderr
from services.worker.engine.probing.trial import try_compiling, try_scheme


def main() -> None:
    """Tries the schemes in order, telling which one begins, so that a crash has a name."""
    device, schemes = torch.device(sys.argv[1]), [int(number) for number in sys.argv[2:]]
    torch.set_num_threads(1)
    for scheme in schemes:
        print(json.dumps({"begins": scheme}), flush=True)
        with hushed_stderr():
            probe = try_scheme(scheme, device) if scheme else try_compiling(device)
        answer = None if probe is None else {"works": probe.works, "reason": probe.reason}
        print(json.dumps({"ended": scheme, "answer": answer}), flush=True)


if __name__ == "__main__":
    main()
