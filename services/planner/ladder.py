"""The ladder: which schemes the denoiser may use on this device, best first, and why each other one may not.

Knows nothing of memory. Invariant: a scheme that the family denies, or that this device was not seen to run, is never
offered; a described device is taken at its capability, and the plan says so.
"""

from __future__ import annotations

from dataclasses import dataclass

from darkroom.knowledge.devices import capability_of
from darkroom.knowledge.family import Scheme
from darkroom.rpc.errors import PlanRefusedError
from darkroom.v1 import device_pb2, plan_pb2
from services.planner.question import Question
from services.planner.words import SCHEME_NAMES, reason


@dataclass(frozen=True)
class Ladder:
    """Schemes to try in order, and what was declined."""

    schemes: tuple[Scheme, ...]
    declined: tuple[tuple[Scheme, plan_pb2.Reason], ...]


def build_ladder(question: Question) -> Ladder:
    """Returns the schemes to try.

    Raises:
        PlanRefusedError: an explicit scheme can't be honoured and no fallback is allowed.
    """
    wish = question.wishes.scheme
    if wish == device_pb2.SCHEME_UNSPECIFIED:
        return _automatic(question)
    obstacle = _obstacle(question, wish)
    if obstacle is None:
        return Ladder((wish,), ())
    if not question.wishes.allows_scheme_fallback:
        raise PlanRefusedError(
            f"{SCHEME_NAMES[wish]} can't be honoured: {obstacle.sentence}",
            scheme=SCHEME_NAMES[wish],
            obstacle=obstacle.code,
        )
    rest = _automatic(question)
    return Ladder(rest.schemes, ((wish, obstacle), *rest.declined))


def _automatic(question: Question) -> Ladder:
    schemes: list[Scheme] = []
    declined: list[tuple[Scheme, plan_pb2.Reason]] = []
    for scheme in question.catalogue.classes[question.device_class].ladder:
        obstacle = _obstacle(question, scheme) or _reluctance(question, scheme)
        if obstacle is None:
            schemes.append(scheme)
        else:
            declined.append((scheme, obstacle))
    return Ladder(tuple(schemes), tuple(declined))


def _obstacle(question: Question, scheme: Scheme) -> plan_pb2.Reason | None:
    """Returns why this scheme can't be used at all; None where it can."""
    if scheme == device_pb2.SCHEME_NONE:
        return None
    name = SCHEME_NAMES[scheme]
    rule = question.catalogue.schemes.get(scheme)
    if rule is None:
        return reason("SCHEME_UNSUPPORTED", f"{name} is no scheme that a model can be converted to.")
    if question.device.is_assumed:
        return _capability_obstacle(question, name, rule.least_capability)
    probe = next((probe for probe in question.device.probes if probe.scheme == scheme), None)
    if probe is None:
        return reason("SCHEME_UNPROVEN", f"{name} was not seen to run on {question.device.name or 'this device'}.")
    if not probe.works:
        return reason("PROBE_FAILED", f"{name} failed its probe on this device: {probe.reason or 'no cause was told'}.")
    return None


def _capability_obstacle(question: Question, name: str, least: tuple[int, ...]) -> plan_pb2.Reason | None:
    has = capability_of(question.device)
    if has >= least:
        return None
    sentence = f"{name} needs CUDA compute capability {least[0]}.{least[1]}; this device has {has[0]}.{has[1]}."
    if has == (0, 0):
        sentence = f"{name} needs a CUDA device of compute capability {least[0]}.{least[1]}; this is none."
    return reason("CAPABILITY_TOO_LOW", sentence)


def _reluctance(question: Question, scheme: Scheme) -> plan_pb2.Reason | None:
    """Returns why this scheme is not chosen unasked; None where it may be."""
    name = SCHEME_NAMES[scheme]
    if question.wishes.speed_mode == plan_pb2.SPEED_MODE_OFF and scheme != device_pb2.SCHEME_NONE:
        return reason("SPEED_MODE_OFF", f"{name} changes the picture, and speed mode off asks for the reference.")
    return None
