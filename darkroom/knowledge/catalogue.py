"""The catalogue: everything that is known, looked up by name.

Knows nothing of files, plans or requests. Invariant: it never changes; its tables are reckoned when it is made.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

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
from darkroom.knowledge.sharing import bases_of
from darkroom.knowledge.sizes import footprints
from darkroom.rpc.errors import InvalidRequestError, UnknownModelError
from darkroom.v1 import checkpoint_pb2, device_pb2, model_pb2, plan_pb2


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


def _repositories(variant: Variant) -> Iterator[str]:
    """Yields the Hub repositories that a variant's files come from."""
    parts = [part.source.repo_id for part in variant.components.values() if part.source is not None]
    hosted = [artifact.repo_id for artifact in variant.artifacts]
    yield from filter(None, (variant.source.repo_id, variant.mirror, variant.gguf, *parts, *hosted))


def _source_text(source: checkpoint_pb2.CheckpointSource) -> str:
    where = source.WhichOneof("location")
    return f"bundled:{source.bundled}" if where == "bundled" else str(getattr(source, where or "repo_id"))
