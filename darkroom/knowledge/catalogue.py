"""The catalogue: every family file merged, checked and looked up by name.

Knows nothing of devices, plans or requests. Invariant: the same files give the same catalogue and the same digest.
"""

from __future__ import annotations

import difflib
import functools
import hashlib
import json
import pathlib
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from darkroom.knowledge.devices import describe_device
from darkroom.knowledge.family import (
    Activations,
    Architecture,
    Decoding,
    DeviceClass,
    DeviceFacts,
    Exclusion,
    Scheme,
    SchemeRule,
    Sharing,
    Variant,
    Weights,
)
from darkroom.knowledge.gates import GateRules
from darkroom.knowledge.recipes import recipe_of
from darkroom.knowledge.schema import Path, Problems, read
from darkroom.knowledge.sharing import bases_of
from darkroom.knowledge.sizes import footprints
from darkroom.rpc.errors import InvalidCatalogueError, InvalidRequestError, UnknownModelError
from darkroom.v1 import checkpoint_pb2, device_pb2, model_pb2, plan_pb2

SHIPPED = pathlib.Path(__file__).parent
# Top-level tables of a catalogue file.
SECTIONS = (
    "family",
    "variants",
    "architectures",
    "weights",
    "activations",
    "decoding",
    "devices",
    "schemes",
    "classes",
    "sharing",
    "exclusions",
    "gates",
)

# A file and what it holds.
Document = tuple[str, dict[str, Any]]


@dataclass(frozen=True)
class Shared:
    """What families refer to by name."""

    architectures: dict[str, Architecture]
    weights: dict[str, Weights]
    activations: dict[str, Activations]
    decoding: dict[str, Decoding]
    devices: dict[str, DeviceFacts]
    schemes: dict[Scheme, SchemeRule]
    classes: dict[str, DeviceClass]
    sharing: dict[str, Sharing]
    exclusions: dict[str, Exclusion]
    gates: dict[str, GateRules]


class Catalogue:
    """All known models. Names and aliases are compared without case."""

    def __init__(self, variants: Sequence[Variant], shared: Shared, digest: str) -> None:
        self.digest = digest
        self.architectures = shared.architectures
        self.weights = shared.weights
        self.activations = shared.activations
        self.decoding = shared.decoding
        self.devices = shared.devices
        self.devices_by_name = {facts.name: facts for facts in shared.devices.values()}
        self.schemes = shared.schemes
        self.classes = shared.classes
        self.sharing = shared.sharing
        self.exclusions = shared.exclusions
        self.gates = shared.gates
        self._recipes = {
            (name, scheme): recipe_of(rule, architecture, scheme)
            for name, architecture in shared.architectures.items()
            for scheme, rule in shared.schemes.items()
        }
        self.footprints = footprints(shared.weights, shared.schemes)
        self._bases = {
            (variant.name, component): bases_of(variant, component, shared.sharing.values())
            for variant in variants
            for component in variant.components
        }
        self._trusted = {repo_id.casefold() for variant in variants for repo_id in _repositories(variant)}
        self._variants = {variant.name: variant for variant in sorted(variants, key=lambda item: item.name)}
        self._names = {
            name.casefold(): variant for variant in self._variants.values() for name in (variant.name, *variant.aliases)
        }

    def __iter__(self) -> Iterator[Variant]:
        return iter(self._variants.values())

    def find(self, name: str) -> Variant:
        """Returns the variant that is called `name`, or has it as an alias.

        Raises:
            UnknownModelError: nothing is called so; names close matches.
        """
        variant = self._names.get(name.casefold())
        if variant is None:
            close = difflib.get_close_matches(name.casefold(), self._names, 3)
            hint = f"close: {', '.join(close)}" if close else "`darkroom models` lists all"
            raise UnknownModelError(f"no model is called {name!r}; {hint}", model=name, close=",".join(close))
        return variant

    def recipe(self, architecture: str, scheme: Scheme) -> plan_pb2.QuantisationRecipe | None:
        """Returns how a scheme quantises an architecture; None for schemes that quantise nothing."""
        return self._recipes.get((architecture, scheme))

    def bases(self, variant: Variant, component: str) -> tuple[str, ...]:
        """Returns the models whose artifacts of this component serve `variant`, its own first."""
        return self._bases[variant.name, component]

    def is_trusted(self, repo_id: str) -> bool:
        """Tells whether a Hub repository is one that the catalogue itself names: a base, a mirror, a part, an artifact.

        Weights elsewhere may carry code that runs when they are read; an operator trusts them by a file of their own.
        """
        return repo_id.casefold() in self._trusted

    def message(self, name: str) -> model_pb2.Model:
        """Returns a model as clients see it. Raises UnknownModelError as `find` does."""
        variant = self.find(name)
        return model_pb2.Model(
            name=variant.name,
            family=variant.family,
            aliases=variant.aliases,
            summary=variant.summary,
            media=variant.media,
            defaults=variant.defaults,
            limits=variant.limits,
            license=variant.license,
            source=_source_text(variant.source),
            is_gated=variant.is_gated,
            sizes=variant.sizes or [model_pb2.Size(width=variant.defaults.width, height=variant.defaults.height)],
            has_audio=variant.has_audio,
        )

    def messages(self) -> list[model_pb2.Model]:
        """Returns all models by name."""
        return [self.message(name) for name in self._variants]

    def device(self, name: str) -> device_pb2.Device:
        """Returns a device that is described, not present, by its key: "rtx-3090", "h100".

        Raises:
            InvalidRequestError: no such device is described; names close ones.
        """
        facts = self.devices.get(name.casefold())
        if facts is None:
            close = difflib.get_close_matches(name.casefold(), self.devices, 3) or sorted(self.devices)
            raise InvalidRequestError({"device": f"{name!r} is not described; take one of {', '.join(close)}"})
        return describe_device(name.casefold(), facts)

    def source(self, name: str) -> checkpoint_pb2.CheckpointSource:
        """Returns where a model's dense weights are. Raises UnknownModelError as `find` does."""
        source = checkpoint_pb2.CheckpointSource(kind=checkpoint_pb2.CHECKPOINT_KIND_DENSE)
        source.MergeFrom(self.find(name).source)
        return source


def load_catalogue(extra_paths: Iterable[str | pathlib.Path] = (), needs_weights: bool = True) -> Catalogue:
    """Loads the shipped files, then `extra_paths` on top.

    Args:
        extra_paths: TOML files, or folders of them; later ones win, key by key.
        needs_weights: False leaves out every count of parameters, for the program that counts them.

    Raises:
        InvalidCatalogueError: a file can't be read, or its content is wrong; names file, key, value and the right one.
    """
    shipped = sorted(path for path in SHIPPED.rglob("*.toml") if needs_weights or path.name != "weights.toml")
    documents = [_parse(path) for path in (*shipped, *_extra_files(extra_paths))]
    families: dict[str, dict[str, Any]] = {}
    tables: dict[str, dict[str, Any]] = {key: {} for key in SECTIONS[2:]}
    for _, document in documents:
        if name := document.get("family", {}).get("name"):
            families[name] = merged(families.get(name, {}), {key: document.get(key, {}) for key in SECTIONS[:2]})
        tables = merged(tables, {key: document.get(key, {}) for key in tables})
    shared = read(Shared, tables, functools.partial(_locate, documents, [()]))
    variants = [variant for family in families.values() for variant in _variants(family, documents)]
    _check_references(variants, shared, documents, needs_weights)
    everything = json.dumps([families, tables], sort_keys=True)
    return Catalogue(variants, shared, hashlib.sha256(everything.encode()).hexdigest())


def merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Returns both tables in one: tables are merged key by key, of anything else the value of `above` wins."""
    result = dict(below)
    for key, value in above.items():
        old = result.get(key)
        result[key] = merged(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return result


def _extra_files(paths: Iterable[str | pathlib.Path]) -> Iterator[pathlib.Path]:
    for path in map(pathlib.Path, paths):
        yield from sorted(path.glob("*.toml")) if path.is_dir() else (path,)


def _parse(path: pathlib.Path) -> Document:
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as fault:
        raise InvalidCatalogueError(f"{path}: {fault}", file=path) from fault
    problems = Problems(lambda key: (str(path), key))
    for name in document.keys() - set(SECTIONS):
        problems.add_unknown((name,), document[name], SECTIONS)
    problems.raise_any()
    return str(path), document


def _variants(family: Mapping[str, Any], documents: Sequence[Document]) -> Iterator[Variant]:
    common = {key: value for key, value in family["family"].items() if key != "name"}
    own = [item for item in documents if item[1].get("family", {}).get("name") == family["family"]["name"]]
    for name, table in family["variants"].items():
        whole = merged(common, table) | {"name": name, "family": family["family"]["name"]}
        yield read(Variant, whole, functools.partial(_locate, own, [("variants", name), ("family",)]))


def _locate(documents: Sequence[Document], roots: Sequence[Path], path: Path) -> tuple[str, Path]:
    """Returns the last file that holds most of `path` under one of `roots`, and the key as it stands there."""
    best, depth = (documents[-1][0], (*roots[0], *path)), -1
    for file, document in reversed(documents):
        for root in roots:
            found = _depth(document, (*root, *path))
            if found > max(depth, len(root) - 1):
                best, depth = (file, (*root, *path)), found
    return best


def _depth(document: Mapping[str, Any], path: Path) -> int:
    table: Any = document
    for depth, part in enumerate(path):
        if isinstance(table, list) and part.startswith("["):
            table = table[int(part[1:-1])]
        elif isinstance(table, Mapping) and part in table:
            table = table[part]
        else:
            return depth
    return len(path)


def _check_references(
    variants: Iterable[Variant], shared: Shared, documents: Sequence[Document], needs_weights: bool
) -> None:
    owners: dict[str, str] = {}
    known = shared.architectures.keys() & shared.weights.keys() if needs_weights else shared.architectures.keys()
    for variant in variants:
        own = [item for item in documents if item[1].get("family", {}).get("name") == variant.family]
        problems = Problems(functools.partial(_locate, own, [("variants", variant.name), ("family",)]))
        for key, component in variant.components.items():
            if component.architecture not in known:
                path = ("components", key, "architecture")
                close = difflib.get_close_matches(component.architecture, known, 3) or sorted(known)
                problems.add(path, component.architecture, f"one with weights, like {', '.join(close)}")
        if all(part.role != plan_pb2.COMPONENT_ROLE_DENOISER for part in variant.components.values()):
            problems.add(("components",), list(variant.components), "such that one has the role denoiser")
        for name in {variant.name.casefold(), *map(str.casefold, variant.aliases)}:
            if owners.setdefault(name, variant.name) != variant.name:
                problems.add(("aliases",), name, f"left out: {owners[name]} has it")
        problems.raise_any()


def _repositories(variant: Variant) -> Iterator[str]:
    """Yields the Hub repositories that a variant's files come from."""
    parts = [part.source.repo_id for part in variant.components.values() if part.source is not None]
    hosted = [artifact.repo_id for artifact in variant.artifacts]
    yield from filter(None, (variant.source.repo_id, variant.mirror, variant.gguf, *parts, *hosted))


def _source_text(source: checkpoint_pb2.CheckpointSource) -> str:
    where = source.WhichOneof("location")
    return f"bundled:{source.bundled}" if where == "bundled" else str(getattr(source, where or "repo_id"))
