"""What a quantised component must pass: thresholds by family and scheme, and what to paint.

Knows nothing of how pictures are compared. Invariant: a model without figures of its own has its family's, and then
everybody's.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated

from darkroom.knowledge.family import Scheme
from darkroom.knowledge.schema import AtLeast

EVERYBODY = "default"


@dataclass(frozen=True)
class GateLimits:
    """Bounds over pairs of pictures: the dense model's and the quantised one's, of one prompt and seed."""

    # Structural similarity, of the worst pair and over all.
    least_ssim: float
    least_mean_ssim: float
    # Perceptual distance (LPIPS, AlexNet), likewise.
    most_lpips: float
    most_mean_lpips: float
    # How much less pictures may fit their prompts, as a difference of CLIP's cosines over all pairs.
    most_mean_clip_drop: float
    # Where these come from.
    source: str
    # A picture that is darker than this is black, unless the dense one is as dark.
    least_luma: Annotated[float, AtLeast(0)] = 0.02
    # Largest change of mean luma, of 1.
    most_luma_shift: Annotated[float, AtLeast(0)] = 0.25


@dataclass(frozen=True)
class GateRules:
    """How a family, or a model, is judged."""

    # Pairs of pictures to make.
    num_pairs: Annotated[int, AtLeast(0)] = 0
    # What they show; taken in turn.
    prompts: tuple[str, ...] = ()
    limits: dict[Scheme, GateLimits] = field(default_factory=dict)


@dataclass(frozen=True)
class Judgement:
    """The rules of one model in one scheme."""

    num_pairs: int
    prompts: Sequence[str]
    limits: GateLimits


def judgement(rules: Mapping[str, GateRules], names: Sequence[str], scheme: Scheme) -> Judgement:
    """Returns the rules for a model.

    Args:
        rules: by model, family, and `default` for everybody.
        names: of the model and its family, the model first.
        scheme: of what is judged.
    """
    chain = [rules[name] for name in (*names, EVERYBODY) if name in rules]
    num_pairs = next(rule.num_pairs for rule in chain if rule.num_pairs)
    prompts = next(rule.prompts for rule in chain if rule.prompts)
    limits = next(rule.limits[scheme] for rule in chain if scheme in rule.limits)
    return Judgement(num_pairs, prompts, limits)


def with_noise(limits: GateLimits, rerun_ssim: float) -> GateLimits:
    """Returns the limits, none stricter than what two runs of the dense model itself reach."""
    return dataclasses.replace(
        limits,
        least_ssim=min(limits.least_ssim, rerun_ssim),
        least_mean_ssim=min(limits.least_mean_ssim, rerun_ssim),
    )
