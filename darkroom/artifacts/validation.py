"""An artifact's claims against what a plan wants, in one fixed order: the same fault always gives the same reason.

    1 format            (read_manifest, or the reader of pickled ones)
    2 content           there are tensors
    3 rotation          declared if and only if the format has it
    4 scheme            5 granularity of float8        6 floor under float8 activations
    7 base              8 least features               9 names left dense
    10 bfloat16 alone   11 fast accumulation           then what only our own manifests tell

Knows nothing of files, tensors or devices. Invariants: base and the rules of float8 are never optional; of a legacy
artifact, what it does not say passes; of our own, everything is said.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from darkroom.artifacts.manifest import Manifest
from darkroom.rpc.errors import SourceRefusedError
from darkroom.v1 import device_pb2, plan_pb2

# Left dense by the filter itself: older artifacts list it beside their own names.
ADAPTER_NAME = "lora_"
ROW = "per_row"


@dataclass(frozen=True)
class Wanted:
    """What a plan wants of a component's artifact."""

    # Models that it may have been made of: the plan's own, its mirror, and those whose component is byte-identical.
    bases: tuple[str, ...]
    component: str
    scheme: int
    compute_type: int
    class_name: str
    recipe: plan_pb2.QuantisationRecipe


@dataclass(frozen=True)
class Claims:
    """What an artifact says of itself; None where it says nothing."""

    has_tensors: bool
    scheme: str | None
    base: str | None
    # Of float8: "per_row", and the floors under its activations, one for each distinct kind of tensor.
    granularity: str | None = None
    floors: tuple[float, ...] | None = None
    min_features: int | None = None
    exclude_names: frozenset[str] | None = None
    requires_bfloat16: bool | None = None
    fast_accumulate: bool | None = None
    # The format with rotated weights, and whether a rotation is declared.
    is_rotated_format: bool = False
    has_rotation: bool = False
    # False for our own: a base must then be equal, not end alike.
    is_legacy: bool = True


def check_claims(claims: Claims, wanted: Wanted, name: str) -> None:
    """Compares in the fixed order.

    Args:
        claims: of the artifact.
        wanted: by the plan.
        name: of the artifact, for messages.

    Raises:
        SourceRefusedError: names the field, what it says and what would be right.
    """
    if not claims.has_tensors:
        raise SourceRefusedError(f"{name} holds no state dict")
    if claims.is_rotated_format != claims.has_rotation:
        told = "declares a rotation that its format has not" if claims.has_rotation else "declares no rotation"
        raise SourceRefusedError(f"{name} {told}")
    if claims.is_rotated_format:
        raise SourceRefusedError(f"{name} has rotated weights (ConvRot), which this version can't compute with")
    scheme = _scheme_word(wanted)
    _compare(name, "scheme", claims.scheme, scheme)
    if wanted.scheme == device_pb2.SCHEME_FP8:
        _compare(name, "granularity", claims.granularity, ROW)
        _check_floors(claims, wanted, name)
    _check_base(claims, wanted, name)
    recipe = wanted.recipe
    _compare_told(name, "min_features", claims.min_features, recipe.min_features)
    if claims.exclude_names is not None:
        _check_names(claims.exclude_names, recipe, name)
    _compare_told(name, "require_bf16", claims.requires_bfloat16, recipe.requires_bfloat16)
    if recipe.fast_accumulate:
        _compare_told(name, "fast_accum", claims.fast_accumulate, True)


def check_manifest(manifest: Manifest, wanted: Wanted, name: str) -> None:
    """Compares one of our own manifests whole. Raises as `check_claims`."""
    check_claims(claims_of(manifest), wanted, name)
    _compare(name, "component", manifest.component, wanted.component)
    _compare(name, "class", manifest.class_name, wanted.class_name)
    _compare(
        name,
        "compute type",
        plan_pb2.ComputeType.Name(manifest.compute_type),  # type: ignore[arg-type]
        plan_pb2.ComputeType.Name(wanted.compute_type),  # type: ignore[arg-type]
    )
    if manifest.recipe != wanted.recipe:
        for field in plan_pb2.QuantisationRecipe.DESCRIPTOR.fields:
            found, right = getattr(manifest.recipe, field.name), getattr(wanted.recipe, field.name)
            _compare(name, f"recipe.{field.name}", found, right)


def claims_of(manifest: Manifest) -> Claims:
    """Returns what one of our own manifests claims."""
    recipe = manifest.recipe
    granularity, floors = float8_claims(manifest.kinds)
    return Claims(
        has_tensors=bool(manifest.tensors and manifest.files),
        scheme=manifest.scheme_word,
        base=manifest.base,
        granularity=granularity,
        floors=floors,
        min_features=recipe.min_features,
        exclude_names=frozenset(recipe.exclude_names),
        requires_bfloat16=recipe.requires_bfloat16,
        fast_accumulate=recipe.fast_accumulate,
        is_legacy=False,
    )


def float8_claims(kinds: tuple[Mapping[str, Any], ...]) -> tuple[str | None, tuple[float, ...] | None]:
    """Returns granularity and floors of float8 tensors as they are kept; None for each where there are none.

    Args:
        kinds: as `Manifest.kinds`.
    """
    activations = [kind["fields"].get("act_quant_kwargs") for kind in kinds if kind.get("class") == "Float8Tensor"]
    if not activations or any(item is None for item in activations):
        return None, None
    fields = [item["fields"] for item in activations]
    is_by_row = all(item["granularity"].get("object") == "PerRow" for item in fields)
    return (ROW if is_by_row else "other"), tuple(item.get("hp_value_lb") or 0.0 for item in fields)


def _check_floors(claims: Claims, wanted: Wanted, name: str) -> None:
    floors = claims.floors or (0.0,)
    if min(floors) <= 0:
        raise SourceRefusedError(f"{name} has no floor under its float8 activations: rows of zeros would become NaN")
    if not claims.is_legacy and set(floors) != {wanted.recipe.activation_floor}:
        _compare(name, "activation floor", sorted(set(floors)), wanted.recipe.activation_floor)


def _check_base(claims: Claims, wanted: Wanted, name: str) -> None:
    if claims.base is None:
        raise SourceRefusedError(f"{name} does not say what model it was made of")
    found = claims.base.casefold()
    bases = {base.casefold() for base in wanted.bases}
    tails = {base.rpartition("/")[2] for base in bases}
    is_alike = claims.is_legacy and found.rpartition("/")[2] in tails
    if found not in bases and not is_alike:
        right = " or ".join(wanted.bases)
        raise SourceRefusedError(f"{name} was made of {claims.base}, and its {wanted.component} serves {right} only")


def _check_names(found: frozenset[str], recipe: plan_pb2.QuantisationRecipe, name: str) -> None:
    """An artifact that leaves other layers dense than the runtime does was made before the list changed."""
    right = frozenset(recipe.exclude_names)
    if differing := sorted((found ^ right) - {ADAPTER_NAME}):
        raise SourceRefusedError(
            f"{name} was made with a stale list of layers that stay dense ({differing[0]!r} differs): build it again"
        )


def _compare_told(name: str, field: str, found: object, right: object) -> None:
    if found is not None:
        _compare(name, field, found, right)


def _compare(name: str, field: str, found: object, right: object) -> None:
    if found != right:
        raise SourceRefusedError(f"{name} has {field} {found}, the plan wants {right}", field=field)


def _scheme_word(wanted: Wanted) -> str:
    return device_pb2.Scheme.Name(wanted.scheme).removeprefix("SCHEME_").lower()  # type: ignore[arg-type]
