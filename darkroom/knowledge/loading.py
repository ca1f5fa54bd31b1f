"""Loading: every file of the catalogue read, merged and checked.

Knows nothing of what the facts are for. Invariant: the same files give the same catalogue and the same digest.
"""

from __future__ import annotations

import difflib
import functools
import hashlib
import json
import pathlib
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from darkroom.knowledge.catalogue import Catalogue, Shared
from darkroom.knowledge.family import Variant
from darkroom.knowledge.schema import Path, Problems, read
from darkroom.rpc.errors import InvalidCatalogueError
from darkroom.v1 import plan_pb2

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
