"""Detection: which model an id, a file name or a pipeline class means.

Knows nothing of files. Invariant: a name counts only as a whole segment of an id, the longest one wins, and what only
looks like one of ours stays unknown, with a reason.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from darkroom.knowledge.catalogue import Catalogue
from darkroom.knowledge.family import Variant
from darkroom.v1 import model_pb2

BOUNDARIES = r"-_./\\ "
# Words of models that change a picture; a model that only makes pictures from words is never meant by them.
EDIT_WORDS = frozenset({"edit", "kontext", "inpaint", "inpainting", "layered", "fill", "canny", "depth", "redux"})


@dataclass(frozen=True)
class Detected:
    """What an id means: a variant, or why none."""

    variant: Variant | None
    reason: str


def detect(catalogue: Catalogue, identifier: str, override: str = "") -> Detected:
    """Returns what `identifier` means: "someone/FLUX.1-dev-fp8", "z_image_turbo_bf16.safetensors".

    Args:
        catalogue: what is known.
        identifier: a repository, a folder or a file name.
        override: a model's exact name or alias, which settles it.

    Raises:
        UnknownModelError: the override names nothing.
    """
    if override:
        return Detected(catalogue.find(override), f"named as {override}")
    wanted = identifier.casefold()
    names = {name.casefold(): variant for variant in catalogue for name in (variant.name, *variant.aliases)}
    name = _longest(names, wanted)
    excluded = {item.needle.casefold(): item.reason for item in catalogue.exclusions.values()}
    obstacle = _longest(excluded, wanted)
    if obstacle and len(obstacle) >= len(name):
        return Detected(None, excluded[obstacle])
    if not name:
        return Detected(None, f"nothing in {identifier!r} is the name of a known model")
    foreign = EDIT_WORDS & set(re.split(f"[{BOUNDARIES}]+", wanted)) - set(re.split(f"[{BOUNDARIES}]+", name))
    if foreign and names[name].limits.image_input != model_pb2.IMAGE_INPUT_REQUIRED:
        return Detected(None, f"{identifier!r} changes pictures ({', '.join(sorted(foreign))}); {name} does not")
    return Detected(names[name], f"{name} is in its name")


def detect_class(catalogue: Catalogue, pipeline_class: str, identifier: str) -> Detected:
    """Returns what a pipeline of this class means: the id decides among the variants that share the class."""
    sharing = [variant for variant in catalogue if variant.pipeline_class == pipeline_class]
    if not sharing:
        return Detected(None, f"no known model is a {pipeline_class}")
    by_name = detect(catalogue, identifier)
    if by_name.variant in sharing:
        return by_name
    families = {variant.family for variant in sharing}
    if len(sharing) == 1 or len(families) == 1:
        return Detected(sharing[0], f"its pipeline is a {pipeline_class}")
    return Detected(None, f"several families share {pipeline_class}, and {identifier!r} names none of them")


def _longest(names: Iterable[str], wanted: str) -> str:
    """Returns the longest name that is a whole segment of `wanted`; empty where none is."""
    found = (name for name in names if name in wanted and _is_segment(name, wanted))
    return max(found, key=len, default="")


def _is_segment(name: str, wanted: str) -> bool:
    return re.search(f"(?:^|[{BOUNDARIES}]){re.escape(name)}(?:$|[{BOUNDARIES}])", wanted) is not None
