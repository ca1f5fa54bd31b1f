"""The walk: layer by layer, dense tensors are read, quantised by the runtime's code, written, and let go.

Knows nothing of where tensors come from or what becomes of the files. Invariants: no more than one dense layer is held;
the order is the class's own, so that the same source gives the same bytes.
"""

from __future__ import annotations

import hashlib
import json
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import torch
from torch import nn

from darkroom.modeling.artifacts.outline import Outline
from darkroom.modeling.artifacts.writing import ShardWriter
from darkroom.modeling.filters import taken_layers
from darkroom.modeling.quantise import quantise_layer
from darkroom.v1 import plan_pb2
from services.checkpoint_builder.making.tensors import Tensors

# Told of (bytes of dense weights done, layers quantised, the name of what was done).
OnLayer = Callable[[int, int, str], None]
# Digests under way: more would hold more tensors.
MOST_DIGESTS = 4


class SourceDigest:
    """SHA-256 over a component's dense tensors: names, types, shapes and bytes, in whatever order they come."""

    def __init__(self, pool: ThreadPoolExecutor) -> None:
        self._pool = pool
        self._waiting: deque[tuple[str, list[object], Future[str]]] = deque()
        self._entries: list[list[object]] = []

    def add(self, name: str, tensor: torch.Tensor) -> None:
        """Takes a tensor on the host; it is hashed beside what follows."""
        entry: list[object] = [name, str(tensor.dtype), list(tensor.shape)]
        self._waiting.append((name, entry, self._pool.submit(_digest, tensor)))
        while len(self._waiting) > MOST_DIGESTS:
            self._settle()

    def hex(self) -> str:
        """Returns the digest of all that was added."""
        while self._waiting:
            self._settle()
        self._entries.sort(key=lambda entry: str(entry[0]))
        return hashlib.sha256(json.dumps(self._entries).encode()).hexdigest()

    def _settle(self) -> None:
        _, entry, future = self._waiting.popleft()
        self._entries.append([*entry, future.result()])


def quantise_into(
    writer: ShardWriter,
    skeleton: nn.Module,
    content: Outline,
    tensors: Tensors,
    scheme: int,
    recipe: plan_pb2.QuantisationRecipe,
    compute_type: torch.dtype,
    device: torch.device,
    digest: SourceDigest,
    on_layer: OnLayer,
) -> None:
    """Writes a whole component.

    Args:
        writer: open.
        skeleton: on the meta device, where it is again afterwards.
        content: the skeleton's.
        tensors: its dense weights.
        scheme: of darkroom.v1.Scheme.
        recipe: which layers, and how.
        compute_type: what float8 storage is cast back to.
        device: where kernels run.
        digest: given every dense tensor.
        on_layer: told of each layer; may raise to stop.
    """
    taken = {name for name, _ in taken_layers(skeleton, recipe)}
    # Rows are padded where layers run, not where they are stored.
    plain = plan_pb2.QuantisationRecipe()
    plain.CopyFrom(recipe)
    plain.ClearField("pad_names")
    num_bytes = num_layers = 0
    for path, layer, names in own_tensors(skeleton, frozenset(content.names)):
        empty = {name: _held(layer, name) for name in names}
        for name in names:
            dense = tensors.get(name)
            num_bytes += dense.numel() * dense.element_size()
            digest.add(name, dense)
            _assign(layer, name, dense)
        if path in taken:
            quantise_layer(path, layer, scheme, plain, compute_type, device)
            num_layers += 1
        for name in names:
            writer.add(name, _held(layer, name))
        for name, tensor in empty.items():
            _assign(layer, name, tensor)
        on_layer(num_bytes, num_layers, path)


def own_tensors(skeleton: nn.Module, stored: frozenset[str]) -> Iterator[tuple[str, nn.Module, list[str]]]:
    """Yields every module that has tensors of its own with their names in the state dict, in the module's order."""
    for path, layer in skeleton.named_modules():
        prefix = f"{path}." if path else ""
        persistent = [name for name in layer._buffers if name not in layer._non_persistent_buffers_set]
        names = [f"{prefix}{name}" for name in (*layer._parameters, *persistent)]
        if names := [name for name in names if name in stored]:
            yield path, layer, names


def _assign(layer: nn.Module, name: str, tensor: torch.Tensor) -> None:
    own = name.rpartition(".")[2]
    if own in layer._parameters:
        layer._parameters[own] = nn.Parameter(tensor, requires_grad=False)
    else:
        layer._buffers[own] = tensor


def _held(layer: nn.Module, name: str) -> torch.Tensor:
    own = name.rpartition(".")[2]
    found: torch.Tensor | None = layer._parameters.get(own)
    if found is None:
        found = layer._buffers[own]
    assert found is not None, "a name of the state dict has a tensor"
    return found


def _digest(tensor: torch.Tensor) -> str:
    plain = tensor.detach().contiguous().reshape(-1)
    return hashlib.sha256(plain.view(torch.uint8).numpy().data if plain.numel() else b"").hexdigest()
