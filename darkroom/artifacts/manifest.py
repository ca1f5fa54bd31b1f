"""What an artifact says of itself, as canonical JSON: what it was made of, how, by which versions, every file's hash.

Knows nothing of tensors beyond their names, types and shapes. Invariants: the same content gives the same bytes, so
that their sha256 is the id; no clock, no host and no path is in it; bytes that are not canonical are refused.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from google.protobuf import json_format

from darkroom.rpc.errors import CorruptCheckpointError, SourceRefusedError
from darkroom.v1 import device_pb2, plan_pb2

FORMAT_FAMILY, FORMAT_VERSION = "darkroom-artifact-v", 1
FORMAT = f"{FORMAT_FAMILY}{FORMAT_VERSION}"
# Of configurations: where and with what a file was written says nothing of the model.
_UNTOLD_CONFIG = frozenset({"_name_or_path", "_commit_hash", "_diffusers_version", "transformers_version"})


@dataclass(frozen=True)
class ArtifactFile:
    """One file of an artifact."""

    name: str
    sha256: str
    size_bytes: int
    # Of a safetensors file: its first bytes up to the data. Empty for others.
    header_sha256: str = ""


@dataclass(frozen=True)
class TensorSpec:
    """One entry of the state dict, and how it is put together."""

    # torch's name of the type that it computes as: "bfloat16".
    dtype: str
    shape: tuple[int, ...]
    # Place in Manifest.kinds of the subclass that it is made into; -1 for a plain tensor.
    kind: int = -1
    # What a subclass is made of: "qdata", "scale".
    parts: tuple[str, ...] = ()


@dataclass(frozen=True)
class Manifest:
    """A whole artifact, described."""

    # Repository or bundled name of the dense model: "black-forest-labs/FLUX.1-dev".
    base: str
    family: str
    # Attribute on the pipeline: "transformer_2".
    component: str
    scheme: int
    compute_type: int
    recipe: plan_pb2.QuantisationRecipe
    # "diffusers" or "transformers", and a class that it exports.
    library: str
    class_name: str
    config: Mapping[str, Any]
    # SPDX identifier of the source's licence.
    licence: str
    # Where the dense weights were: repository, revision, and a hash over its files.
    source: str
    source_revision: str
    source_sha256: str
    # By package, as plain texts.
    versions: Mapping[str, str]
    files: tuple[ArtifactFile, ...]
    tensors: Mapping[str, TensorSpec]
    # Distinct subclasses with their fields, as `darkroom.modeling.artifacts.flatten` writes them.
    kinds: tuple[Mapping[str, Any], ...] = ()
    # Names that are another tensor, by the one that is stored.
    ties: Mapping[str, str] = field(default_factory=dict)
    # Tensors that are stored as they are in the state dict, and of them those in the scheme.
    num_tensors: int = 0
    num_quantised: int = 0

    @functools.cached_property
    def data(self) -> bytes:
        """The manifest as canonical JSON."""
        return canonical(_as_table(self))

    @functools.cached_property
    def id(self) -> str:
        """The artifact's id: sha256 of the manifest's bytes, in hexadecimal."""
        return hashlib.sha256(self.data).hexdigest()

    @property
    def size_bytes(self) -> int:
        """Bytes of all weight files."""
        return sum(file.size_bytes for file in self.files)

    @property
    def compute_word(self) -> str:
        """The compute type's word: "bfloat16"."""
        return _compute_word(self.compute_type)

    @property
    def scheme_word(self) -> str:
        """The scheme's word: "int8"."""
        return device_pb2.Scheme.Name(self.scheme).removeprefix("SCHEME_").lower()  # type: ignore[arg-type]


def read_manifest(data: bytes, name: str = "the manifest") -> Manifest:
    """Returns the manifest that `data` is.

    Args:
        data: the file's bytes.
        name: of the file, for messages.

    Raises:
        SourceRefusedError: another version of the format, or no manifest of ours at all; says what to do.
        CorruptCheckpointError: damaged or edited.
    """
    try:
        table = json.loads(data)
    except ValueError as garbage:
        raise CorruptCheckpointError(f"{name} can't be read as JSON", file=name) from garbage
    check_format(table.get("format") if isinstance(table, dict) else None, name)
    try:
        manifest = _from_table(table)
        is_same = manifest.data == data
    except (KeyError, TypeError, ValueError, AttributeError, json_format.ParseError) as misfit:
        raise CorruptCheckpointError(f"{name} lacks a field or holds a wrong one ({misfit})", file=name) from misfit
    if not is_same:
        raise CorruptCheckpointError(f"{name} was edited or damaged: it is not what Darkroom writes", file=name)
    return manifest


def check_format(found: object, name: str) -> None:
    """Raises SourceRefusedError unless `found` is this version's format tag."""
    if found == FORMAT:
        return
    if isinstance(found, str) and found.startswith(FORMAT_FAMILY):
        version = found.removeprefix(FORMAT_FAMILY)
        is_newer = version.isdecimal() and int(version) > FORMAT_VERSION
        remedy = "update Darkroom" if is_newer else "build it again with `darkroom build`"
        raise SourceRefusedError(f"{name} has format {found}, this version reads {FORMAT}: {remedy}", format=found)
    raise SourceRefusedError(f"{name} has format {found!r}, not {FORMAT}: it is no manifest of Darkroom's")


def canonical(table: Mapping[str, Any]) -> bytes:
    """Returns a JSON object as bytes that depend on its content alone."""
    text = json.dumps(table, sort_keys=True, indent=1, ensure_ascii=False, allow_nan=False)
    return (text + "\n").encode()


def clean_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a component's configuration without what tells of the machine and the versions that wrote it."""
    return {key: value for key, value in config.items() if key not in _UNTOLD_CONFIG}


def exclusion_digest(recipe: plan_pb2.QuantisationRecipe) -> str:
    """Returns a sha256 over the names that a recipe leaves dense."""
    names = [sorted(recipe.exclude_names), sorted(recipe.exclude_exactly)]
    return hashlib.sha256(json.dumps(names).encode()).hexdigest()


def _as_table(manifest: Manifest) -> dict[str, Any]:
    plain = {name: getattr(manifest, name) for name in _PLAIN}
    return plain | {
        "format": FORMAT,
        "scheme": manifest.scheme_word,
        "compute_type": manifest.compute_word,
        "recipe": json_format.MessageToDict(manifest.recipe, preserving_proto_field_name=True),
        "exclusions_sha256": exclusion_digest(manifest.recipe),
        "config": clean_config(manifest.config),
        "versions": {name: str(version) for name, version in manifest.versions.items()},
        "files": [dataclasses.asdict(file) for file in manifest.files],
        "tensors": {name: _spec_table(spec) for name, spec in manifest.tensors.items()},
        "kinds": [dict(kind) for kind in manifest.kinds],
        "ties": dict(manifest.ties),
    }


def _spec_table(spec: TensorSpec) -> dict[str, Any]:
    table: dict[str, Any] = {"dtype": spec.dtype, "shape": list(spec.shape)}
    return table if spec.kind < 0 else {**table, "kind": spec.kind, "parts": list(spec.parts)}


def _from_table(table: Mapping[str, Any]) -> Manifest:
    tensors = {
        name: TensorSpec(entry["dtype"], tuple(entry["shape"]), entry.get("kind", -1), tuple(entry.get("parts", ())))
        for name, entry in table["tensors"].items()
    }
    return Manifest(
        **{name: table[name] for name in _PLAIN},
        scheme=device_pb2.Scheme.Value(f"SCHEME_{table['scheme'].upper()}"),
        compute_type=plan_pb2.ComputeType.Value(f"COMPUTE_TYPE_{table['compute_type'].upper()}"),
        recipe=json_format.ParseDict(table["recipe"], plan_pb2.QuantisationRecipe()),
        config=table["config"],
        versions=table["versions"],
        files=tuple(ArtifactFile(**entry) for entry in table["files"]),
        tensors=tensors,
        kinds=tuple(table["kinds"]),
        ties=table["ties"],
    )


def _compute_word(compute_type: int) -> str:
    return plan_pb2.ComputeType.Name(compute_type).removeprefix("COMPUTE_TYPE_").lower()  # type: ignore[arg-type]


# Fields that JSON holds as they are.
_PLAIN = (
    "base",
    "family",
    "component",
    "library",
    "class_name",
    "licence",
    "source",
    "source_revision",
    "source_sha256",
    "num_tensors",
    "num_quantised",
)
