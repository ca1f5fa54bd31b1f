"""The dense tensors of a component, one at a time, as the runtime would hold them: in its names and in its types.

Knows nothing of quantising. Invariants: a tensor is read when it is asked for and let go by whoever asked; one that is
missing or of another shape is told before anything is written.
"""

from __future__ import annotations

import contextlib
import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import nn

from darkroom.modeling.filters import kept_float32
from darkroom.rpc.errors import CorruptCheckpointError, SourceRefusedError

# Names that the libraries give to weights, the first that is there counts.
STEMS = ("diffusion_pytorch_model", "model")


class Tensors(ABC):
    """A component's state dict, read lazily."""

    @abstractmethod
    def get(self, name: str) -> torch.Tensor:
        """Returns a tensor on the host, in the type that the runtime holds it in. Raises CorruptCheckpointError."""


class MappedTensors(Tensors):
    """Out of mapped safetensors files.

    Args:
        skeleton: the component on the meta device.
        folder: holds the files.
        compute_type: the runtime's.

    Raises:
        SourceRefusedError: no safetensors files.
        CorruptCheckpointError: a file is broken, or a tensor is missing.
    """

    def __init__(self, skeleton: nn.Module, folder: Path, compute_type: torch.dtype) -> None:
        self._state = skeleton.state_dict(keep_vars=True)
        self._types = _runtime_types(skeleton, compute_type)
        self._name = folder.name
        self._files: list[Any] = []
        found: dict[str, tuple[Any, str]] = {}
        for path in weight_files(folder):
            with _told(path):
                file = safe_open(path, framework="pt", device="cpu")  # type: ignore[no-untyped-call]
                found |= {key: (file, key) for key in file.keys()}  # type: ignore[no-untyped-call]  # noqa: SIM118
            self._files.append(file)
        self._places = renamed(skeleton, self._state, found)
        first = first_names(skeleton)
        if missing := [name for name in self._state if first[name] == name and name not in self._places]:
            raise CorruptCheckpointError(
                f"the weights of {self._name} don't fit a {type(skeleton).__name__}: {len(missing)} tensors are "
                f"missing, {missing[0]} first"
            )

    def get(self, name: str) -> torch.Tensor:
        file, key = self._places[name]
        with _told(Path(self._name)):
            tensor: torch.Tensor = file.get_tensor(key)
        if tensor.shape != self._state[name].shape:
            problem = f"{name} is {tuple(tensor.shape)}, {tuple(self._state[name].shape)} expected"
            raise CorruptCheckpointError(f"the weights of {self._name} don't fit: {problem}", tensor=name)
        return tensor.to(self._types[name])


class LoadedTensors(Tensors):
    """Out of a component that the runtime's own code has read whole: single files, and formats that need converting."""

    def __init__(self, module: nn.Module) -> None:
        self._state = module.state_dict()

    def get(self, name: str) -> torch.Tensor:
        tensor: torch.Tensor = self._state[name]
        return tensor


def weight_files(folder: Path) -> list[Path]:
    """Returns the safetensors files of a component, as the libraries would choose them.

    Raises:
        SourceRefusedError: there are none.
        CorruptCheckpointError: the list of shards is broken, or a shard is missing.
    """
    for stem in STEMS:
        listing = folder / f"{stem}.safetensors.index.json"
        if listing.is_file():
            return _shards(listing)
        if (whole := folder / f"{stem}.safetensors").is_file():
            return [whole]
    raise SourceRefusedError(f"{folder.name} holds no safetensors weights; pickled ones are never read")


def _shards(listing: Path) -> list[Path]:
    try:
        names = sorted(set(json.loads(listing.read_text())["weight_map"].values()))
    except (ValueError, KeyError, AttributeError) as garbage:
        raise CorruptCheckpointError(f"{listing.name} can't be read", file=listing.name) from garbage
    paths = [listing.parent / Path(name).name for name in names]
    if missing := [path.name for path in paths if not path.is_file()]:
        raise CorruptCheckpointError(
            f"{listing.parent.name} lacks {len(missing)} of {len(paths)} shards: {missing[0]}…"
        )
    return paths


def first_names(skeleton: nn.Module) -> dict[str, str]:
    """Returns for every name of the state dict the first name that is the same tensor."""
    seen: dict[int, str] = {}
    return {name: seen.setdefault(id(item), name) for name, item in skeleton.state_dict(keep_vars=True).items()}


def renamed(
    skeleton: nn.Module, state: Mapping[str, Any], found: Mapping[str, tuple[Any, str]]
) -> dict[str, tuple[Any, str]]:
    """Returns the places of tensors by the names of the class, which may differ from those in the files.

    Of tied tensors any may be in the file; the first name stands for all.
    """
    first = first_names(skeleton)
    names = {key: key for key in found}
    if type(skeleton).__module__.startswith("transformers."):
        names = _transformers_names(skeleton, state, found)
    places: dict[str, tuple[Any, str]] = {}
    for key, name in names.items():
        if name in first:
            places.setdefault(first[name], found[key])
    return places


def needs_conversion(skeleton: nn.Module, folder: Path) -> bool:
    """Tells whether transformers makes tensors of several in the files, so that it has to read them itself."""
    if not type(skeleton).__module__.startswith("transformers."):
        return False
    from transformers.core_model_loading import rename_source_key

    renamings, converters, prefix = _rules(skeleton)
    if not converters:
        return False
    state = skeleton.state_dict()
    for path in weight_files(folder):
        with _told(path), safe_open(path, framework="pt", device="cpu") as file:  # type: ignore[no-untyped-call]
            for key in file.keys():  # noqa: SIM118 - no mapping
                if rename_source_key(key, renamings, converters, prefix, state)[1] is not None:
                    return True
    return False


def _transformers_names(skeleton: nn.Module, state: Mapping[str, Any], keys: Iterable[str]) -> dict[str, str]:
    """As `from_pretrained` of transformers 5 renames them."""
    from transformers.core_model_loading import rename_source_key

    renamings, _, prefix = _rules(skeleton)
    return {key: rename_source_key(key, renamings, [], prefix, dict(state))[0] for key in keys}


def _rules(skeleton: Any) -> tuple[list[Any], list[Any], str]:
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import WeightConverter, WeightRenaming

    rules = get_model_conversion_mapping(skeleton)
    renamings = [rule for rule in rules if isinstance(rule, WeightRenaming)]
    converters = [rule for rule in rules if isinstance(rule, WeightConverter)]
    return renamings, converters, skeleton.base_model_prefix


def _runtime_types(skeleton: nn.Module, compute_type: torch.dtype) -> dict[str, torch.dtype]:
    """The type of every tensor once the runtime has read it: `compute_type`, but for what a class keeps in float32.

    Not the skeleton's: classes that make others within take the type that their configuration was saved with.
    """
    state = skeleton.state_dict()
    kept = kept_float32(skeleton)
    return {
        name: (torch.float32 if name in kept else compute_type) if item.is_floating_point() else item.dtype
        for name, item in state.items()
    }


@contextlib.contextmanager
def _told(path: Path) -> Any:
    try:
        yield
    except (SafetensorError, OSError) as broken:
        text = f"{path.name} can't be read: {str(broken)[:200]}"
        raise CorruptCheckpointError(text, file=path.name) from broken
