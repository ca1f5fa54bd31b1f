"""Live memory: the largest sum of tensors alive at once while something runs on the meta device.

What PyTorch's eager mode would allocate for results, without computing any; workspaces of kernels are not seen.
Invariant: a storage counts from the call that made it until its last reference goes.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter


class _Ledger(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts storages as they come and go."""

    def __init__(self, known: nn.Module) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._counted = {item.untyped_storage()._cdata: 0 for item in (*known.parameters(), *known.buffers())}
        self._live_bytes = 0
        self.peak_bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for item in tree_iter(result):
            if isinstance(item, torch.Tensor):
                self._count(item.untyped_storage())
        return result

    def _count(self, storage: torch.UntypedStorage) -> None:
        key = storage._cdata
        if key in self._counted:
            return
        self._counted[key] = storage.nbytes()
        self._live_bytes += storage.nbytes()
        self.peak_bytes = max(self.peak_bytes, self._live_bytes)
        weakref.finalize(storage, self._discount, key)

    def _discount(self, key: int) -> None:
        self._live_bytes -= self._counted.pop(key, 0)


class _FusedAttention(TorchFunctionMode):
    """Takes attention for what a fused kernel holds, its result: the meta device would build the matrix of scores."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is not nn.functional.scaled_dot_product_attention:
            return func(*args, **(kwargs or {}))
        named = dict(zip(("query", "key", "value"), args, strict=False)) | (kwargs or {})
        query, value = named["query"], named["value"]
        return query.new_empty(*query.shape[:-1], value.shape[-1])


def peak_live_bytes(module: nn.Module, run: Callable[[], object]) -> int:
    """Returns the peak of bytes alive while `run` runs on meta tensors, the module's own weights left out."""
    ledger = _Ledger(module)
    with torch.no_grad(), _FusedAttention(), ledger:
        run()
    return ledger.peak_bytes
