"""Which models an artifact of a component may have been made of: the model itself, its mirror, and its equals.

Knows nothing of artifacts themselves. Invariant: two models are equal in a component only where `sharing.toml` says
that its bytes are identical.
"""

from __future__ import annotations

from collections.abc import Iterable

from darkroom.knowledge.family import Sharing, Variant


def bases_of(variant: Variant, component: str, sharing: Iterable[Sharing]) -> tuple[str, ...]:
    """Returns the repositories or bundled names whose artifacts of `component` serve this model, its own first."""
    own = variant.source.repo_id or variant.source.bundled
    equal = [base for group in sharing if group.component == component and own in group.bases for base in group.bases]
    return tuple(dict.fromkeys(base for base in (own, variant.mirror, *equal) if base))
