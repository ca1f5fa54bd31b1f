"""What a component's artifact holds, told from its skeleton: names in order, ties, and which are in the scheme.

By the one filter of quantisation. Knows nothing of weights or files. Invariant: builder and reader ask here, so that an
artifact of another filter, or of another architecture, is told by its names alone.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from accelerate import init_empty_weights
from torch import nn

from darkroom.modeling.dense import find_class
from darkroom.modeling.filters import taken_layers
from darkroom.rpc.errors import CorruptCheckpointError, SourceRefusedError
from darkroom.v1 import device_pb2, plan_pb2


@dataclass(frozen=True)
class Outline:
    """An artifact's content by names."""

    # Stored once each, in the state dict's order.
    names: tuple[str, ...]
    # Of the state dict, but the same tensor as a stored one.
    ties: Mapping[str, str]
    # Stored in the scheme, not dense.
    quantised: frozenset[str]

    @property
    def num_tensors(self) -> int:
        """Entries of the state dict, ties included."""
        return len(self.names) + len(self.ties)


def outline(module: nn.Module, scheme: int, recipe: plan_pb2.QuantisationRecipe) -> Outline:
    """Returns the outline of a module, on the meta device or not."""
    firsts: dict[int, str] = {}
    ties: dict[str, str] = {}
    parameters = dict(module.named_parameters(remove_duplicate=False))
    names = list(module.state_dict())
    for name in names:
        if name in parameters:
            first = firsts.setdefault(id(parameters[name]), name)
            if first != name:
                ties[name] = first
    taken = set()
    for name, layer in taken_layers(module, recipe):
        taken.add(f"{name}.weight")
        if scheme == device_pb2.SCHEME_FP8_STORAGE and layer.bias is not None:
            taken.add(f"{name}.bias")
    stored = tuple(name for name in names if name not in ties)
    return Outline(stored, ties, frozenset(ties.get(name, name) for name in taken))


def skeleton_of(library: str, class_name: str, config: Mapping[str, Any], compute_type: torch.dtype) -> nn.Module:
    """Returns a module with parameters on the meta device and its buffers built, in evaluation mode.

    Args:
        library: "diffusers" or "transformers".
        class_name: that it exports.
        config: as the component's config.json has it.
        compute_type: of what is made anew: buffers that follow the default type.

    Raises:
        SourceRefusedError: another library, or no such class.
        CorruptCheckpointError: the class refuses the configuration.
    """
    kind = find_class(library, class_name, "the artifact")
    if not (isinstance(kind, type) and issubclass(kind, nn.Module)):
        raise SourceRefusedError(f"{class_name} of {library} is no model class")
    try:
        with _default_type(compute_type), init_empty_weights():
            module = _construct(kind, dict(config))
    except (TypeError, ValueError, KeyError, AttributeError, AssertionError, RuntimeError) as misfit:
        problem = f"{class_name} refuses the artifact's configuration: {str(misfit)[:200]}"
        raise CorruptCheckpointError(problem, class_name=class_name) from misfit
    tie: Any = getattr(module, "tie_weights", None)
    if tie is not None:
        tie()
    return module.eval()


def _construct(kind: Any, config: dict[str, Any]) -> nn.Module:
    if getattr(kind, "config_class", None) is not None:  # transformers
        module: nn.Module = kind(kind.config_class.from_dict(config))
        return module
    return kind.from_config(config)  # type: ignore[no-any-return]


@contextlib.contextmanager
def _default_type(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
