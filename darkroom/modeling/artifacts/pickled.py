"""State dicts in the `.pt` layout that artifacts on the Hub have: a pickled dict of a format tag, metadata and tensors.

Read by `weights_only`, so that nothing but tensors and torchao's own classes is ever made. Knows nothing of plans or
where files came from. Invariants: what a file says of itself is compared before its tensors are used; a rotated one is
refused.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from darkroom.artifacts.validation import Claims, Wanted, check_claims, float8_claims
from darkroom.modeling.artifacts.flatten import flatten
from darkroom.modeling.artifacts.outline import outline, skeleton_of
from darkroom.modeling.artifacts.reading import check_names, check_taken, fill
from darkroom.rpc.errors import CorruptCheckpointError, KernelFailedError, SourceRefusedError

PLAIN, ROTATED = "unsloth_prequant_transformer_state_dict_v1", "unsloth_prequant_transformer_state_dict_v2"
TEXT_ENCODER = "unsloth_prequant_text_encoder_state_dict_v1"
FORMATS = (PLAIN, ROTATED, TEXT_ENCODER)
# The key of the tag, as far as published files differ.
_TAG_KEYS = ("format", "format_tag")
_STATE_KEYS, _METADATA_KEYS = ("state_dict",), ("metadata", "meta")


def load_pickled(
    path: Path,
    wanted: Wanted,
    library: str,
    config: Mapping[str, Any],
    compute_type: torch.dtype,
    device: torch.device,
    read: Callable[[int], None] = lambda count: None,
) -> nn.Module:
    """Returns the component of a `.pt` file, in its scheme, on a device, in evaluation mode.

    Args:
        path: of the file.
        wanted: by the plan.
        library: "diffusers" or "transformers".
        config: of the component: these files hold none, but for a key "transformer_config" in some.
        compute_type: of what stays dense, and of what storage is cast back to.
        device: where its tensors go.
        read: told how many bytes arrived; may raise to stop.

    Raises:
        SourceRefusedError: another format, rotated, or not what is wanted.
        CorruptCheckpointError: it can't be read, or holds other tensors than the class.
    """
    content = _unpickle(path)
    metadata, state = _first(content, _METADATA_KEYS, path), _first(content, _STATE_KEYS, path)
    check_claims(_claims(content, metadata, state, path), wanted, path.name)
    own_config = metadata.get("transformer_config") or config
    class_name = str(metadata.get("transformer_class") or metadata.get("te_class") or wanted.class_name)
    if class_name != wanted.class_name:
        raise SourceRefusedError(f"{path.name} is a {class_name}, the plan wants a {wanted.class_name}")
    module = skeleton_of(library, wanted.class_name, own_config, compute_type)
    own = outline(module, wanted.scheme, wanted.recipe)
    present = {name: tensor for name, tensor in state.items() if name not in own.ties}
    check_names(set(own.names), set(present), wanted.class_name)
    check_taken(own.quantised, frozenset(name for name, tensor in present.items() if _is_quantised(tensor)))
    placed = {}
    for name, tensor in present.items():
        placed[name] = tensor.to(device)
        read(tensor.numel())
    return fill(module, placed, own.ties, wanted.scheme, wanted.recipe, compute_type, device)


def _unpickle(path: Path) -> dict[str, Any]:
    """The content, with nothing made that is not on torch's list or torchao's, which importing it adds."""
    import torchao
    import torchao.prototype.mx_formats  # noqa: F401

    try:
        content = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except pickle.UnpicklingError as refused:
        text = str(refused).partition("\n")[0][:200]
        raise CorruptCheckpointError(f"{path.name} would make something else than tensors: {text}") from refused
    except (RuntimeError, EOFError, ValueError, KeyError, OSError, AttributeError) as broken:
        raise CorruptCheckpointError(f"{path.name} can't be read: {str(broken)[:200]}", file=path.name) from broken
    if not isinstance(content, dict):
        raise SourceRefusedError(f"{path.name} holds a {type(content).__name__}, not an artifact")
    return content


def _first(content: Mapping[str, Any], keys: tuple[str, ...], path: Path) -> dict[str, Any]:
    found: Any = next((content[key] for key in keys if key in content), {})
    if not isinstance(found, dict):
        raise CorruptCheckpointError(f"{path.name} holds no table under {keys[0]!r}", file=path.name)
    return found


def _claims(content: Mapping[str, Any], metadata: Mapping[str, Any], state: Mapping[str, Any], path: Path) -> Claims:
    tag = next((content[key] for key in _TAG_KEYS if key in content), None) or metadata.get("format")
    if tag not in FORMATS:
        raise SourceRefusedError(f"{path.name} has format {tag!r}; known are {', '.join(FORMATS)}")
    scheme = metadata.get("scheme")
    if tag == TEXT_ENCODER and scheme == "fp8":
        scheme = "fp8_storage"
    granularity, floors = float8_claims(tuple(_kinds(state)))
    exclude = metadata.get("exclude_name_tokens")
    return Claims(
        has_tensors=bool(state) and all(isinstance(tensor, torch.Tensor) for tensor in state.values()),
        scheme=scheme,
        base=metadata.get("base_model_id"),
        granularity=metadata.get("fp8_granularity") or granularity,
        floors=floors,
        min_features=metadata.get("min_features"),
        exclude_names=None if exclude is None else frozenset(exclude),
        requires_bfloat16=metadata.get("require_bf16"),
        fast_accumulate=metadata.get("fast_accum"),
        is_rotated_format=tag == ROTATED,
        has_rotation=bool(metadata.get("activation_rotation")),
    )


def _kinds(state: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Distinct subclasses with their fields."""
    kinds: list[Mapping[str, Any]] = []
    for name, tensor in state.items():
        if not isinstance(tensor, torch.Tensor):
            continue
        try:
            kind, _ = flatten(name, tensor)
        except KernelFailedError as foreign:
            raise SourceRefusedError(foreign.message) from foreign
        if kind is not None and kind not in kinds:
            kinds.append(kind)
    return kinds


def _is_quantised(tensor: torch.Tensor) -> bool:
    return hasattr(tensor.data, "__tensor_flatten__") or tensor.dtype == torch.float8_e4m3fn
