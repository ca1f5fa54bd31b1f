"""Embeddings of prompts that were encoded before: kept on the host, by everything that they depend on.

Stands for a pipeline's `encode_prompt`, whose answer is decided by its arguments and the text encoders' weights.
Invariants: what is found is bit for bit, stride for stride, what encoding again would give; keys are hashes under a
secret of this process, so that no prompt can be read from memory or logs; a call that can't be told apart by its
arguments goes through.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import json
import secrets
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_map

from darkroom.v1 import generation_pb2

HOST = torch.device("cpu")
KNOB = "prompt_cache"


class UnknownValueError(Exception):
    """A value that no key can stand for."""


class PromptCache:
    """Stands for `encode_prompt` of one loaded pipeline.

    Args:
        encode: the pipeline's own.
        encoders: whose weights decide, with their adapters.
        most_bytes: of all that is kept; what was used longest ago goes.
    """

    def __init__(self, encode: Callable[..., Any], encoders: list[torch.nn.Module], most_bytes: int) -> None:
        functools.update_wrapper(self, encode)
        self._encode = encode
        self._signature = inspect.signature(encode)
        self._encoders = encoders
        self._most_bytes = most_bytes
        self._secret = secrets.token_bytes(16)
        self._entries: OrderedDict[bytes, tuple[Any, int]] = OrderedDict()
        self._num_calls = self._num_found = 0
        self._obstacle = ""
        self.held_bytes = 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Returns what encoding gives."""
        self._num_calls += 1
        try:
            key = self._key(args, kwargs)
        except UnknownValueError as obstacle:
            self._obstacle = f"the call has {obstacle}"
            return self._encode(*args, **kwargs)
        if (entry := self._entries.get(key)) is not None:
            self._entries.move_to_end(key)
            self._num_found += 1
            return tree_map(lambda kept: kept.restored() if isinstance(kept, Kept) else kept, entry[0])
        values = self._encode(*args, **kwargs)
        self._keep(key, values)
        return values

    def begin(self) -> None:
        """A call of the pipeline begins."""
        self._num_calls = self._num_found = 0
        self._obstacle = ""

    def engagements(self) -> list[generation_pb2.Engagement]:
        """How many encodings of the call were found."""
        engaged = f"{self._num_found} of {self._num_calls} encodings found"
        return [generation_pb2.Engagement(knob=KNOB, resolved="on", engaged=engaged, reason=self._obstacle)]

    def clear(self) -> None:
        """Forgets everything: the weights of encoders, or of adapters on them, have changed."""
        self._entries.clear()
        self.held_bytes = 0

    def _key(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
        bound = self._signature.bind(*args, **kwargs)
        bound.apply_defaults()
        parts = [[name, _spelt(value)] for name, value in sorted(bound.arguments.items())]
        text = json.dumps([parts, [adapters_of(encoder) for encoder in self._encoders]])
        return hashlib.sha256(self._secret + text.encode()).digest()

    def _keep(self, key: bytes, values: Any) -> None:
        leaves = tree_flatten(values)[0]
        strange = [leaf for leaf in leaves if not isinstance(leaf, (torch.Tensor, bool, int, float, str, type(None)))]
        if strange:
            self._obstacle = f"the encoding holds a {type(strange[0]).__name__}"
            return
        kept = tree_map(lambda leaf: Kept(leaf) if isinstance(leaf, torch.Tensor) else leaf, values)
        num_bytes = sum(leaf.num_bytes for leaf in tree_flatten(kept)[0] if isinstance(leaf, Kept))
        if num_bytes > self._most_bytes:
            self._obstacle = f"the encoding has {num_bytes} bytes, and {self._most_bytes} may be kept in all"
            return
        self._entries[key] = (kept, num_bytes)
        self.held_bytes += num_bytes
        while self.held_bytes > self._most_bytes:
            _, (_, gone_bytes) = self._entries.popitem(last=False)
            self.held_bytes -= gone_bytes


class Kept:
    """A tensor's copy on the host, that can be made again where and as it was."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._device = tensor.device
        self._copy = replica(tensor, HOST)

    @property
    def num_bytes(self) -> int:
        """Of the copy."""
        return self._copy.untyped_storage().nbytes()

    def restored(self) -> torch.Tensor:
        """Returns a tensor of its own."""
        return replica(self._copy, self._device)


# Elements after which an offset repeats its alignment, whatever the kernel's width.
ALIGNMENT = 64


def replica(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Returns a copy with the same strides and alignment: kernels choose by both, and round differently."""
    whole = tensor
    for dimension, stride in enumerate(tensor.stride()):
        if stride == 0:
            whole = whole.narrow(dimension, 0, min(1, tensor.shape[dimension]))
    offset = tensor.storage_offset() % ALIGNMENT
    span = offset + 1 + sum((size - 1) * stride for size, stride in zip(whole.shape, whole.stride(), strict=True))
    buffer = torch.empty(max(span, 0) if tensor.numel() else 0, dtype=tensor.dtype, device=device)
    if not tensor.numel():
        return torch.empty_like(tensor, device=device)
    view = buffer.as_strided(whole.shape, whole.stride(), offset)
    return view.copy_(whole).expand(tensor.shape)


def adapters_of(encoder: torch.nn.Module) -> list[list[Any]]:
    """Returns the adapters that weigh on an encoder: layer, name, scale."""
    if not getattr(encoder, "peft_config", None):
        return []
    found: list[list[Any]] = []
    for name, layer in encoder.named_modules():
        scales = getattr(layer, "scaling", None)
        if isinstance(scales, dict):
            active = getattr(layer, "active_adapters", [])
            found += [[name, adapter, scales[adapter]] for adapter in active if adapter in scales]
            found.append([name, bool(getattr(layer, "disable_adapters", False)), bool(getattr(layer, "merged", False))])
    return found


def _spelt(value: Any) -> Any:
    """Spells a value so that two are spelt alike only if they are alike. Raises UnknownValueError."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return [type(value).__name__, repr(value)]
    if isinstance(value, (torch.device, torch.dtype)):
        return [type(value).__name__, str(value)]
    if isinstance(value, (list, tuple)):
        return [type(value).__name__, [_spelt(item) for item in value]]
    if isinstance(value, dict):
        return ["dict", [[_spelt(name), _spelt(item)] for name, item in value.items()]]
    raise UnknownValueError(f"a {type(value).__name__}")
