"""The ladder: which schemes denoiser and text encoders may use on this device, best first, and why others may not.

Knows nothing of memory. Invariant: a scheme that the family denies, or that this device was not seen to run, is never
offered; a described device is taken at its capability, and the plan says so.
"""

from __future__ import annotations

from dataclasses import dataclass

from darkroom.knowledge.devices import capability_of
from darkroom.knowledge.family import Role, Scheme
from darkroom.rpc.errors import PlanRefusedError
from darkroom.v1 import device_pb2, plan_pb2
from services.planner.question import Question
from services.planner.sizes import DENOISER, TEXT_ENCODER, VAE
from services.planner.words import SCHEME_NAMES, reason

NONE, STORAGE = device_pb2.SCHEME_NONE, device_pb2.SCHEME_FP8_STORAGE
# Kinds beside CUDA that can hold float8.
STORING_KINDS = (device_pb2.DEVICE_KIND_ROCM, device_pb2.DEVICE_KIND_XPU)
# Of a device that multiplies bfloat16 in units of its own.
WEIGHT_ONLY_CAPABILITY = (8, 0)
# Schemes that an adapter can be baked into before quantising.
BAKEABLE = frozenset({NONE, STORAGE, device_pb2.SCHEME_INT8, device_pb2.SCHEME_FP8})


@dataclass(frozen=True)
class Ladder:
    """Schemes to try in order, and what was declined."""

    schemes: tuple[Scheme, ...]
    text_schemes: tuple[Scheme, ...]
    vae_scheme: Scheme
    declined: tuple[tuple[Scheme, plan_pb2.Reason], ...]


def build_ladder(question: Question) -> Ladder:
    """Returns the schemes to try.

    Raises:
        PlanRefusedError: an explicit scheme can't be honoured and no fallback is allowed.
    """
    declined: list[tuple[Scheme, plan_pb2.Reason]] = []
    if question.gguf is not None:
        return Ladder((device_pb2.SCHEME_GGUF,), (NONE,), NONE, ())
    schemes = _schemes(question, question.wishes.scheme, DENOISER, declined)
    text_schemes = _schemes(question, question.wishes.text_encoder_scheme, TEXT_ENCODER, declined)
    # A VAE is cast only when asked for: it is small beside the rest, and what it spoils is seen at once.
    vae_wish = question.wishes.vae_scheme or NONE
    (vae_scheme, *_) = _schemes(question, vae_wish, VAE, declined)
    return Ladder(schemes, text_schemes, vae_scheme, tuple(declined))


def _schemes(
    question: Question, wish: Scheme, role: Role, declined: list[tuple[Scheme, plan_pb2.Reason]]
) -> tuple[Scheme, ...]:
    if wish != device_pb2.SCHEME_UNSPECIFIED:
        obstacle = _obstacle(question, wish, role, is_asked_for=True)
        if obstacle is None:
            return (wish,)
        if not question.wishes.allows_scheme_fallback:
            sentence = f"{SCHEME_NAMES[wish]} can't be honoured: {obstacle.sentence}"
            raise PlanRefusedError(sentence, scheme=SCHEME_NAMES[wish], obstacle=obstacle.code)
        declined.append((wish, obstacle))
    order = {DENOISER: question.catalogue.classes[question.device_class].ladder, VAE: (NONE,)}.get(
        role, (NONE, STORAGE)
    )
    offered = []
    for scheme in order:
        obstacle = _obstacle(question, scheme, role) or _reluctance(question, scheme)
        if obstacle is None:
            offered.append(scheme)
        elif role == DENOISER:
            declined.append((scheme, obstacle))
    return tuple(offered)


def _obstacle(question: Question, scheme: Scheme, role: Role, is_asked_for: bool = False) -> plan_pb2.Reason | None:
    """Returns why this scheme can't be used at all; None where it can."""
    if scheme == NONE:
        return None
    name, rule = SCHEME_NAMES[scheme], question.catalogue.schemes.get(scheme)
    if rule is None:
        return reason("SCHEME_UNSUPPORTED", f"{name} is a kind of file, not a scheme that a model is converted to.")
    for denial in question.variant.denials:
        if denial.role == role and scheme in denial.schemes and not (denial.is_advice and is_asked_for):
            return reason("SCHEME_DENIED", f"{name} is denied for {question.variant.name}: {denial.reason}.")
    if not _takes_any(question, scheme, role):
        return reason("NOTHING_TO_QUANTISE", f"{name} takes no layer of {question.variant.name}: all are too small.")
    if lack := _missing_recipe(question, scheme, role):
        return reason("NO_RECIPE", f"{name} has no recipe for {lack}.")
    if role == DENOISER and question.wishes.adapters and scheme not in BAKEABLE:
        return reason("ADAPTERS_NEED_ANOTHER_SCHEME", f"adapters can't be baked into {name}.")
    if rule.requires_bfloat16 and question.compute_type != plan_pb2.COMPUTE_TYPE_BFLOAT16:
        return reason("COMPUTE_TYPE_UNFIT", f"{name} needs bfloat16 weights, and this device computes in another type.")
    # Weights alone are multiplied in the compute type.
    is_weight_only = rule.text_weight_only and role == TEXT_ENCODER
    least = WEIGHT_ONLY_CAPABILITY if is_weight_only else rule.least_capability
    if question.device.is_assumed:
        return _capability_obstacle(question, name, least)
    # A device without units for it may have been seen to multiply weights alone.
    needs_units = rule.text_weight_only and not is_weight_only
    unfit = _capability_obstacle(question, name, least) if needs_units else None
    return unfit or _probe_obstacle(question.device, scheme)


def _takes_any(question: Question, scheme: Scheme, role: Role) -> bool:
    parts = [part for part in question.variant.components.values() if part.role == role]
    counted = [question.catalogue.weights[part.architecture].schemes.get(scheme) for part in parts]
    return any(item is not None and item.num_tensors for item in counted)


def _missing_recipe(question: Question, scheme: Scheme, role: Role) -> str:
    """Returns the architecture of this role that nobody has a recipe for; empty where all have one."""
    if role == DENOISER or (scheme == STORAGE and role == TEXT_ENCODER):
        return ""
    parts = [part for part in question.variant.components.values() if part.role == role]
    if not parts:
        return ""
    largest = max(parts, key=lambda part: question.catalogue.weights[part.architecture].parameters)
    name = largest.architecture
    if role == VAE:
        is_pinned = bool(largest.compute_type)
        return name if is_pinned or scheme not in question.catalogue.weights[name].schemes else ""
    # int8 loses the prompt unless the blocks that carry it stay dense, which are known for few.
    return (
        name
        if scheme == device_pb2.SCHEME_INT8 and scheme not in question.catalogue.architectures[name].exclude
        else ""
    )


def _probe_obstacle(device: device_pb2.Device, scheme: Scheme) -> plan_pb2.Reason | None:
    name = SCHEME_NAMES[scheme]
    probe = next((probe for probe in device.probes if probe.scheme == scheme), None)
    if probe is None:
        return reason("SCHEME_UNPROVEN", f"{name} was not seen to run on {device.name or 'this device'}.")
    if not probe.works:
        return reason("PROBE_FAILED", f"{name} failed its probe on this device: {probe.reason or 'no cause was told'}.")
    return None


def _capability_obstacle(question: Question, name: str, least: tuple[int, ...]) -> plan_pb2.Reason | None:
    has, device = capability_of(question.device), question.device
    if has >= least or (device.kind in STORING_KINDS and name == SCHEME_NAMES[STORAGE]):
        return None
    need = f"{name} needs CUDA compute capability {least[0]}.{least[1]}"
    return reason("CAPABILITY_TOO_LOW", f"{need}; {device.name} has {f'{has[0]}.{has[1]}' if has[0] else 'none'}.")


def _reluctance(question: Question, scheme: Scheme) -> plan_pb2.Reason | None:
    """Returns why this scheme is not chosen unasked; None where it may be."""
    name = SCHEME_NAMES[scheme]
    if scheme == NONE:
        return None
    if question.wishes.speed_mode == plan_pb2.SPEED_MODE_OFF:
        return reason("SPEED_MODE_OFF", f"{name} changes the picture, and speed mode off asks for the reference.")
    if scheme == STORAGE and question.wishes.forbids_storage_cast:
        return reason("STORAGE_CAST_FORBIDDEN", "The caller forbids weights stored in float8 and computed in another.")
    if question.catalogue.schemes[scheme].needs_compile and not question.can_compile:
        return reason(
            "COMPILE_UNAVAILABLE", f"{name} uncompiled is 20 to 60 times slower than dense: not taken unasked."
        )
    return None
