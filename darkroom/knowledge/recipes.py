"""The recipe of a scheme for one architecture: the rule of the scheme, and the layers that this one leaves out.

The only place where a recipe is made, for plans, for artifacts and for counting. Invariant: a recipe says everything
that the filter needs.
"""

from __future__ import annotations

from darkroom.knowledge.family import Architecture, Scheme, SchemeRule
from darkroom.v1 import plan_pb2


def recipe_of(rule: SchemeRule, architecture: Architecture, scheme: Scheme) -> plan_pb2.QuantisationRecipe:
    """Returns how `scheme` quantises `architecture`."""
    own = architecture.exclude.get(scheme, ())
    generic = rule.text_exclude_names if architecture.is_text_encoder else rule.exclude_names
    if architecture.is_vae:
        generic = rule.vae_exclude_names
    return plan_pb2.QuantisationRecipe(
        min_features=architecture.min_features.get(scheme, rule.min_features),
        exclude_names=[*generic, *own],
        exclude_exactly=rule.exclude_exactly,
        pad_names=architecture.pad.get(scheme, ()),
        min_rows=rule.min_rows,
        wide_in_features=rule.wide_in_features,
        wide_min_rows=rule.wide_min_rows,
        feature_multiple=rule.feature_multiple,
        requires_bfloat16=rule.requires_bfloat16,
        activation_floor=rule.activation_floor,
        fast_accumulate=rule.fast_accumulate,
        takes_convolutions=rule.takes_convolutions,
        weight_only=rule.text_weight_only and architecture.is_text_encoder,
    )
