"""An order against the catalogue: which components, by which recipe, from where.

Knows nothing of torch, and of files only whether a path is allowed. Invariants: every wrong field is named together,
before anything is fetched; the recipe is the catalogue's own, which the runtime quantises by.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from darkroom.artifacts.names import stem_of
from darkroom.knowledge import Architecture, Catalogue, Component
from darkroom.knowledge.family import Variant
from darkroom.rpc.errors import InvalidRequestError, PlanRefusedError, SourceRefusedError
from darkroom.v1 import build_pb2, checkpoint_pb2, device_pb2, plan_pb2
from services.checkpoint_builder.config import BuilderSettings

SCHEMES = (
    device_pb2.SCHEME_FP8,
    device_pb2.SCHEME_INT8,
    device_pb2.SCHEME_MXFP8,
    device_pb2.SCHEME_NVFP4,
    device_pb2.SCHEME_FP8_STORAGE,
)
BFLOAT16 = plan_pb2.COMPUTE_TYPE_BFLOAT16
DENOISER = plan_pb2.COMPONENT_ROLE_DENOISER
BASE = re.compile(r"[A-Za-z0-9_][\w.-]*(/[A-Za-z0-9_][\w.-]*)?")
SOURCE_KINDS = (
    checkpoint_pb2.CHECKPOINT_KIND_UNSPECIFIED,
    checkpoint_pb2.CHECKPOINT_KIND_DENSE,
    checkpoint_pb2.CHECKPOINT_KIND_SINGLE_FILE,
)


@dataclass(frozen=True)
class Part:
    """One component to build."""

    name: str
    role: int
    architecture: Architecture
    scheme: int
    recipe: plan_pb2.QuantisationRecipe
    compute_type: int
    # Where its dense weights are; a pipeline's folder or repository, unless `is_apart`.
    source: checkpoint_pb2.CheckpointSource
    # True where the source holds this component alone.
    is_apart: bool
    # Name of its files.
    stem: str


@dataclass(frozen=True)
class Task:
    """An order that can be carried out."""

    order: build_pb2.BuildOrder
    variant: Variant
    # The dense model, by its repository, or by its name where it is bundled.
    base: str
    parts: tuple[Part, ...]


def read_order(order: build_pb2.BuildOrder, catalogue: Catalogue, settings: BuilderSettings) -> Task:
    """Returns what to do.

    Raises:
        InvalidRequestError: fields are wrong; all of them are named, as `order.scheme` and so on.
        UnknownModelError: no model is called so.
        PlanRefusedError: the scheme takes no layer of a component.
        SourceRefusedError: the source is not allowed, or is not there.
    """
    if not order.model:
        raise InvalidRequestError({"order.model": "is empty; `darkroom models` lists the names"})
    variant = catalogue.find(order.model)
    names = _component_names(order, variant)
    if problems := _problems(order, variant, names):
        raise InvalidRequestError(problems, model=variant.name)
    full = build_pb2.BuildOrder()
    full.CopyFrom(order)
    full.model, full.compute_type = variant.name, order.compute_type or BFLOAT16
    _check_source(order.source, catalogue, settings)
    base = full.base = _base(order, variant)
    return Task(full, variant, base, tuple(_part(full, catalogue, variant, base, name) for name in names))


def _component_names(order: build_pb2.BuildOrder, variant: Variant) -> list[str]:
    if order.component:
        return [order.component]
    denoisers = [name for name, part in variant.components.items() if part.role == DENOISER]
    return denoisers[order.expert - 1 : order.expert] if order.expert > 0 else denoisers


def own_base(variant: Variant) -> str:
    """Returns what a catalogue's model is called as a base: its repository, or its name where it is bundled."""
    return variant.source.repo_id or variant.source.bundled


def _base(order: build_pb2.BuildOrder, variant: Variant) -> str:
    """A fine-tuned copy must never stand in for its model, so a source of its own has a name of its own."""
    own = own_base(variant)
    if order.base or order.source.WhichOneof("location") is None:
        return order.base or own
    return own if order.source.repo_id in (own, variant.mirror) else order.source.repo_id


def _problems(order: build_pb2.BuildOrder, variant: Variant, names: Sequence[str]) -> dict[str, str]:
    problems: dict[str, str] = {}
    known = ", ".join(variant.components)
    if order.scheme not in SCHEMES:
        words = ", ".join(device_pb2.Scheme.Name(scheme).removeprefix("SCHEME_").lower() for scheme in SCHEMES)
        problems["order.scheme"] = f"is {_word(order.scheme)}; a checkpoint is one of {words}"
    if order.component and order.component not in variant.components:
        problems["order.component"] = f"{order.component!r} is none of {variant.name}'s: {known}"
    if order.expert and order.component:
        problems["order.expert"] = "goes with no component: it picks one of two denoisers"
    elif order.expert and not names:
        problems["order.expert"] = f"is {order.expert}; {variant.name} has no such expert"
    if order.compute_type not in plan_pb2.ComputeType.values():
        problems["order.compute_type"] = f"is {order.compute_type}; known are bfloat16, float16 and float32"
    if order.source.kind not in SOURCE_KINDS:
        problems["order.source.kind"] = "a checkpoint is made of dense weights or of a single file of them"
    if order.source.kind == checkpoint_pb2.CHECKPOINT_KIND_SINGLE_FILE and len(names) != 1:
        problems["order.expert"] = "must be set: one file holds one expert"
    own = own_base(variant)
    place = order.source.WhichOneof("location")
    if place == "path" and not order.base:
        problems["order.base"] = f"is needed with a path: {own} if the source is a copy of that, else a name of its own"
    elif place is None and order.base not in ("", own):
        problems["order.base"] = f"is {order.base[:80]!r} without a source of its own; leave it out"
    elif order.base and not BASE.fullmatch(order.base):
        problems["order.base"] = f"{order.base[:80]!r} is no name; write owner/name"
    if not 0 <= order.num_pairs <= 64:
        problems["order.num_pairs"] = f"is {order.num_pairs}; send 0 for the catalogue's number, or 1 to 64"
    return problems


def _part(order: build_pb2.BuildOrder, catalogue: Catalogue, variant: Variant, base: str, name: str) -> Part:
    component = variant.components[name]
    recipe = catalogue.recipe(component.architecture, order.scheme)
    counted = catalogue.weights[component.architecture].schemes.get(order.scheme)
    if recipe is None or counted is None or not counted.num_tensors:
        raise PlanRefusedError(f"{_word(order.scheme)} takes no layer of {variant.name}'s {name}: nothing to build")
    compute_type = component.compute_type or order.compute_type
    if recipe.requires_bfloat16 and compute_type != BFLOAT16:
        raise PlanRefusedError(f"{_word(order.scheme)} takes bfloat16 weights only; leave the compute type out")
    source, is_apart = _source_of(order, variant, component)
    return Part(
        name=name,
        role=component.role,
        architecture=catalogue.architectures[component.architecture],
        scheme=order.scheme,
        recipe=recipe,
        compute_type=compute_type,
        source=source,
        is_apart=is_apart,
        stem=stem_of(base, name, order.scheme),
    )


def _source_of(
    order: build_pb2.BuildOrder, variant: Variant, component: Component
) -> tuple[checkpoint_pb2.CheckpointSource, bool]:
    if order.source.WhichOneof("location"):
        return order.source, False
    if component.source is not None:
        return component.source, True
    return variant.source, False


def _check_source(source: checkpoint_pb2.CheckpointSource, catalogue: Catalogue, settings: BuilderSettings) -> None:
    place = source.WhichOneof("location")
    if place == "path":
        path = Path(source.path).resolve()
        if not any(path.is_relative_to(parent) for parent in settings.source_folders):
            raise SourceRefusedError(
                f"{source.path!r} lies outside the folders that this builder reads; "
                "DARKROOM_BUILDER_SOURCE_PATHS allows more"
            )
        if not path.exists():
            raise SourceRefusedError(f"there is no {source.path!r} on the builder's machine")
    elif place == "repo_id":
        trusted = {source.repo_id, source.repo_id.partition("/")[0]}
        if settings.trusted_repos.isdisjoint(trusted) and not catalogue.is_trusted(source.repo_id):
            raise SourceRefusedError(
                f"the repository {source.repo_id!r} is not in the catalogue; "
                "DARKROOM_BUILDER_TRUSTED_REPOS can trust it"
            )


def _word(scheme: int) -> str:
    try:
        return device_pb2.Scheme.Name(scheme).removeprefix("SCHEME_").lower()  # type: ignore[arg-type]
    except ValueError:
        return str(scheme)
