"""A tensor as plain tensors with a description that JSON holds, and the same tensor back from them.

By `__tensor_flatten__`, which every subclass of torchao has, with torchao's own list of classes that may be made from
a file; parts are named as torchao's safetensors support names them, root-level tensors included, which its parser does
not take. Knows nothing of files. Invariant: what comes back equals what went in, bit for bit, every field included; no
class outside the list is ever made.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
from collections.abc import Mapping
from typing import Any

import torch

from darkroom.artifacts.manifest import TensorSpec
from darkroom.rpc.errors import CorruptCheckpointError, KernelFailedError

# One key of a table that stands for a value that JSON has no word for.
_TUPLE, _DTYPE, _ENUM, _OBJECT = "tuple", "dtype", "enum", "object"


def flatten(name: str, tensor: torch.Tensor) -> tuple[dict[str, Any] | None, dict[str, torch.Tensor]]:
    """Returns the subclass with its fields (None for a plain tensor), and the plain tensors by their names in a file.

    Raises:
        KernelFailedError: a subclass that can't be described.
    """
    tensor = tensor.data
    if not hasattr(tensor, "__tensor_flatten__"):
        return None, {name: tensor}
    parts, fields = tensor.__tensor_flatten__()
    word = type(tensor).__name__
    if _classes().get(word) is not type(tensor) or not isinstance(fields, dict):
        raise KernelFailedError(f"{name} is a {word}, which artifacts don't hold")
    inner = {part_name(name, part): getattr(tensor, part) for part in parts}
    if any(hasattr(value, "__tensor_flatten__") for value in inner.values()):
        raise KernelFailedError(f"{name} is a {word} within another, which artifacts don't hold")
    kind = {"class": word, "fields": {key: encode(value) for key, value in sorted(fields.items())}}
    return kind, inner


def unflatten(name: str, spec: TensorSpec, kind: Mapping[str, Any], parts: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Returns the tensor.

    Args:
        name: of the tensor, for messages.
        spec: its type, shape and parts.
        kind: as `flatten` gives it.
        parts: plain tensors by part: "qdata".

    Raises:
        CorruptCheckpointError: parts and description don't make such a tensor.
    """
    made = _class_of(kind.get("class"), name)
    try:
        fields = {key: decode(value, name) for key, value in kind["fields"].items()}
        tensor: torch.Tensor = made.__tensor_unflatten__(dict(parts), fields, None, None)
    except (KeyError, TypeError, ValueError, AttributeError, AssertionError, RuntimeError) as misfit:
        problem = f"{name} can't be made into a {kind.get('class')}: {str(misfit)[:200]}"
        raise CorruptCheckpointError(problem, tensor=name) from misfit
    if tuple(tensor.shape) != spec.shape or dtype_word(tensor.dtype) != spec.dtype:
        found = f"{dtype_word(tensor.dtype)} of {tuple(tensor.shape)}"
        raise CorruptCheckpointError(f"{name} became {found}, {spec.dtype} of {spec.shape} expected", tensor=name)
    return tensor


def part_name(name: str, part: str) -> str:
    """Returns the name in a file: "block.0._weight_qdata" of "block.0.weight", "_weight_qdata" of "weight"."""
    module, dot, weight = name.rpartition(".")
    return f"{module}{dot}_{weight}_{part}"


def encode(value: Any) -> Any:
    """Returns a field as JSON, such that `decode` gives an equal one of the same type.

    Raises:
        KernelFailedError: a value of another type.
    """
    if value is None or (isinstance(value, (bool, int, float, str)) and not isinstance(value, enum.Enum)):
        return value
    if isinstance(value, torch.dtype):
        return {_DTYPE: dtype_word(value)}
    word = type(value).__name__
    if isinstance(value, enum.Enum) and _classes().get(word) is type(value):
        return {_ENUM: word, "member": value.name}
    if hasattr(value, "_asdict") or dataclasses.is_dataclass(value):
        if _classes().get(word) is type(value):
            fields = value._asdict() if hasattr(value, "_asdict") else _fields(value)
            return {_OBJECT: word, "fields": {key: encode(item) for key, item in sorted(fields.items())}}
    elif isinstance(value, tuple):
        return {_TUPLE: [encode(item) for item in value]}
    elif isinstance(value, list):
        return [encode(item) for item in value]
    raise KernelFailedError(f"a field of type {word} can't be kept in an artifact")


def decode(value: Any, name: str) -> Any:
    """Returns what `encode` was given. Raises CorruptCheckpointError for what it never gives."""
    if isinstance(value, list):
        return [decode(item, name) for item in value]
    if not isinstance(value, dict):
        return value
    if _DTYPE in value:
        return dtype_of(value[_DTYPE], name)
    if _TUPLE in value:
        return tuple(decode(item, name) for item in value[_TUPLE])
    made = _class_of(value.get(_ENUM) or value.get(_OBJECT), name)
    if _ENUM in value:
        return made[value["member"]]
    return made(**{key: decode(item, name) for key, item in value["fields"].items()})


def dtype_word(dtype: torch.dtype) -> str:
    """Returns torch's name of a type: "bfloat16"."""
    return str(dtype).removeprefix("torch.")


def dtype_of(word: str, name: str) -> torch.dtype:
    """Returns the type of that name. Raises CorruptCheckpointError."""
    found = getattr(torch, word, None)
    if not isinstance(found, torch.dtype):
        raise CorruptCheckpointError(f"{name} is said to be {word!r}, which is no type of torch", tensor=name)
    return found


def _fields(value: Any) -> dict[str, Any]:
    return {item.name: getattr(value, item.name) for item in dataclasses.fields(value)}


def _class_of(word: Any, name: str) -> Any:
    found = _classes().get(word)
    if found is None:
        raise CorruptCheckpointError(f"{name} needs a class {word!r}, which is never made from a file", tensor=name)
    return found


@functools.cache
def _classes() -> dict[str, Any]:
    """Subclasses and the types of their fields, by name: torchao's own list."""
    from torchao.prototype.safetensors.safetensors_utils import ALLOWED_CLASSES

    return dict(ALLOWED_CLASSES)
