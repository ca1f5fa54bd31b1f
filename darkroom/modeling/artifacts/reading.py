"""A component out of its artifact: skeleton, tensors straight to their device, subclasses rebuilt, ties restored.

Knows nothing of plans, stores or where files came from. Invariants: dense weights of what is quantised never exist; a
module that is returned has every tensor of its class and no other, from files whose hashes were seen to be right.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import nn

from darkroom.artifacts.folder import LocalArtifact
from darkroom.artifacts.manifest import Manifest
from darkroom.artifacts.names import WEIGHTS_SUFFIX
from darkroom.artifacts.verification import Verification
from darkroom.modeling.artifacts.flatten import dtype_of, part_name, unflatten
from darkroom.modeling.artifacts.outline import outline, skeleton_of
from darkroom.modeling.artifacts.staging import Place
from darkroom.modeling.artifacts.tensor_files import places_in, read_tensors
from darkroom.modeling.quantise import adopt
from darkroom.rpc.errors import CorruptCheckpointError, SourceRefusedError


def load_artifact(
    artifact: LocalArtifact,
    compute_type: torch.dtype,
    device: torch.device,
    memory: Path | None = None,
    read: Callable[[int], None] = lambda count: None,
) -> nn.Module:
    """Returns the component, in its scheme, on a device, in evaluation mode.

    Args:
        artifact: manifest and files; the manifest was compared with what is wanted.
        compute_type: of what stays dense, and of what storage is cast back to.
        device: where its tensors go.
        memory: file of hashes that were seen to be right before; None hashes everything.
        read: told how many bytes arrived, again and again; may raise to stop.

    Raises:
        SourceRefusedError: another filter or library than the ones here made it.
        CorruptCheckpointError: a file is damaged, or holds other tensors than the class.
    """
    manifest = artifact.manifest
    with Verification(memory) as verification:
        for file in manifest.files:
            verification.begin(file, artifact.paths[file.name])
        module = skeleton_of(manifest.library, manifest.class_name, manifest.config, compute_type)
        check_outline(module, manifest)
        state = _state(artifact, device, read)
        verification.wait()
    return fill(module, state, manifest.ties, manifest.scheme, manifest.recipe, compute_type, device)


def check_outline(module: nn.Module, manifest: Manifest) -> None:
    """Compares what an artifact lists with what this filter takes of this class.

    Raises:
        SourceRefusedError: other tensors are quantised than would be here.
        CorruptCheckpointError: tensors are missing, are too many, or have other shapes.
    """
    own = outline(module, manifest.scheme, manifest.recipe)
    check_names(set(own.names), set(manifest.tensors), manifest.class_name)
    if dict(own.ties) != dict(manifest.ties):
        raise CorruptCheckpointError(f"{manifest.class_name} shares other tensors than the artifact says")
    shapes = {name: tuple(tensor.shape) for name, tensor in module.state_dict().items()}
    for name, spec in manifest.tensors.items():
        if spec.shape != shapes[name]:
            raise CorruptCheckpointError(f"{name} is of {spec.shape}, the class has {shapes[name]}", tensor=name)
    found = frozenset(name for name, spec in manifest.tensors.items() if is_quantised(manifest, name))
    check_taken(own.quantised, found)
    if (manifest.num_tensors, manifest.num_quantised) != (own.num_tensors, len(found)):
        raise CorruptCheckpointError("the manifest's counts are not those of its own list of tensors")


def check_names(wanted: set[str], found: set[str], class_name: str) -> None:
    """Raises CorruptCheckpointError unless both hold the same names."""
    if missing := sorted(wanted - found):
        raise CorruptCheckpointError(f"the artifact lacks {len(missing)} tensors of {class_name}, {missing[0]} first")
    if foreign := sorted(found - wanted):
        raise CorruptCheckpointError(
            f"the artifact has {len(foreign)} tensors that {class_name} lacks, {foreign[0]} first"
        )


def check_taken(wanted: frozenset[str], found: frozenset[str]) -> None:
    """Raises SourceRefusedError unless exactly the tensors are quantised that this filter takes."""
    if differing := sorted(wanted ^ found):
        where = "quantised in the artifact alone" if differing[0] in found else "dense in the artifact alone"
        raise SourceRefusedError(
            f"the artifact was made with another filter: {len(differing)} tensors differ, {differing[0]} is {where}"
        )


def is_quantised(manifest: Manifest, name: str) -> bool:
    """Tells whether a tensor is kept in the artifact's scheme."""
    spec = manifest.tensors[name]
    return spec.kind >= 0 or spec.dtype.startswith("float8_")


def fill(
    module: nn.Module,
    state: Mapping[str, torch.Tensor],
    ties: Mapping[str, str],
    scheme: int,
    recipe: object,
    compute_type: torch.dtype,
    device: torch.device,
) -> nn.Module:
    """Puts tensors into a skeleton and has them compute in their scheme. Raises CorruptCheckpointError."""
    parameters = dict(module.named_parameters(remove_duplicate=False))
    ready: dict[str, torch.Tensor] = {
        name: nn.Parameter(tensor, requires_grad=False) if name in parameters else tensor
        for name, tensor in state.items()
    }
    # One object for both names: assigning it to both is the tie.
    ready.update({alias: ready[name] for alias, name in ties.items()})
    try:
        module.load_state_dict(ready, strict=True, assign=True)
    except RuntimeError as misfit:
        raise CorruptCheckpointError(f"the artifact doesn't fit {type(module).__name__}: {misfit}") from misfit
    for layer in module.modules():
        for name, buffer in layer.named_buffers(recurse=False):
            if buffer.is_meta:
                raise CorruptCheckpointError(f"{type(layer).__name__} has a buffer {name} that nothing fills")
            layer._buffers[name] = buffer.to(device)
    adopt(module, scheme, recipe, compute_type)  # type: ignore[arg-type]
    return module.eval()


def _state(artifact: LocalArtifact, device: torch.device, read: Callable[[int], None]) -> dict[str, torch.Tensor]:
    """The state dict's stored tensors on the device."""
    manifest = artifact.manifest
    places: dict[str, Place] = {}
    for file in manifest.files:
        if file.name.endswith(WEIGHTS_SUFFIX):
            places |= places_in(artifact.paths[file.name])
    _check_places(manifest, places)
    plain = read_tensors(places, device, read)
    state = {}
    for name, spec in manifest.tensors.items():
        if spec.kind < 0:
            state[name] = plain.pop(name)
        else:
            parts = {part: plain.pop(part_name(name, part)) for part in spec.parts}
            state[name] = unflatten(name, spec, manifest.kinds[spec.kind], parts)
    return state


def _check_places(manifest: Manifest, places: Mapping[str, Place]) -> None:
    wanted: set[str] = set()
    for name, spec in manifest.tensors.items():
        if spec.kind >= 0:
            wanted |= {part_name(name, part) for part in spec.parts}
            continue
        wanted.add(name)
        place = places.get(name)
        if place is not None and (place.shape != spec.shape or place.dtype != dtype_of(spec.dtype, name)):
            raise CorruptCheckpointError(f"{name} is {place.dtype} of {place.shape}, not as the manifest says")
    if wanted != set(places):
        first = sorted(wanted ^ set(places))[0]
        raise CorruptCheckpointError(f"the files hold other tensors than the manifest lists, {first} first")
