"""Bytes of a candidate: the catalogue's counts under the schemes that it picks, and activations at the workload's size.

Knows nothing of budgets. Invariant: a figure that nobody measured is reckoned from above, never below.
"""

from __future__ import annotations

from darkroom.knowledge import Component, sizes
from darkroom.knowledge.family import Activations as UnitBytes
from darkroom.knowledge.family import Role, Scheme
from darkroom.v1 import device_pb2, plan_pb2
from services.planner.placement import Activations, Weights
from services.planner.question import Question

DENOISER = plan_pb2.COMPONENT_ROLE_DENOISER
TEXT_ENCODER = plan_pb2.COMPONENT_ROLE_TEXT_ENCODER
VAE = plan_pb2.COMPONENT_ROLE_VAE
CONNECTOR = plan_pb2.COMPONENT_ROLE_CONNECTOR

# Where an architecture has no measured figure: above every one that was measured (158 kB a token, 2,437 bytes a pixel).
UNMEASURED_TOKEN = UnitBytes(200_000.0)
UNMEASURED_PIXEL = UnitBytes(4_000.0)
# A tile is 512 pixels square; blending holds the decoded rows and the whole output in the compute type.
TILE_PIXELS = 512 * 512
OUTPUT_COPIES = 3


def component_bytes(question: Question, component: Component, scheme: Scheme) -> int:
    """Returns the device bytes of one component's weights."""
    counted = question.catalogue.weights[component.architecture]
    item = sizes.ITEM_BYTES[component.compute_type or question.compute_type]
    rule = question.catalogue.schemes.get(scheme)
    return sizes.scheme_bytes(counted, scheme, rule, item) if rule else sizes.dense_bytes(counted, item)


def weights_of(question: Question, schemes: dict[Role, Scheme], is_quantised_while_loading: bool) -> Weights:
    """Returns the bytes of all components.

    Args:
        question: names the variant.
        schemes: a scheme for each role.
        is_quantised_while_loading: the dense denoiser visits the device first.
    """
    parts: dict[Role, list[int]] = {DENOISER: [], TEXT_ENCODER: [], VAE: [], CONNECTOR: []}
    dense_denoiser = 0
    for component in question.variant.components.values():
        parts[component.role].append(component_bytes(question, component, schemes[component.role]))
        if component.role == DENOISER:
            dense_denoiser = max(dense_denoiser, component_bytes(question, component, device_pb2.SCHEME_NONE))
    largest = max(parts[DENOISER])
    others = sum(parts[DENOISER]) - largest
    return Weights(
        denoisers=tuple(parts[DENOISER]),
        text_encoders=tuple(parts[TEXT_ENCODER]),
        vae=sum(parts[VAE]) + sum(parts[CONNECTOR]),
        text_layer=max(parts[TEXT_ENCODER], default=0) // 12,
        streamed_denoiser=largest // 10,
        denoiser_layer=largest // 20,
        loading=others + dense_denoiser if is_quantised_while_loading else 0,
    )


def activations_of(question: Question, slices: bool) -> Activations:
    """Returns what each stage needs beside weights, at the workload's size."""
    work, scale = question.workload, question.item_bytes / 2
    prompt = question.variant.limits.max_prompt_tokens * work.batch_size
    tokens = question.num_tokens + prompt
    denoise = encode = decode = tiled = 0.0
    pixels = work.width * work.height * work.num_frames * (1 if slices else work.batch_size)
    for component in question.variant.components.values():
        unmeasured = UNMEASURED_PIXEL if component.role == VAE else UNMEASURED_TOKEN
        measured = question.catalogue.activations.get(component.architecture, unmeasured)
        if component.role == DENOISER:
            denoise = max(denoise, measured.fixed_bytes + tokens * measured.bytes_each)
        elif component.role == TEXT_ENCODER:
            encode = max(encode, measured.fixed_bytes + prompt * measured.bytes_each)
        elif component.role == VAE:
            decode = max(decode, measured.fixed_bytes + pixels * measured.bytes_each)
            tile = min(pixels, TILE_PIXELS) * measured.bytes_each
            tiled = max(tiled, measured.fixed_bytes + tile + pixels * 3 * 2 * OUTPUT_COPIES)
    return Activations(*(int(part * scale) for part in (encode, denoise, decode, min(decode, tiled))))


def is_estimate(question: Question) -> bool:
    """Tells whether some component's configuration could not be read from its owner."""
    architectures = question.catalogue.architectures
    return any(architectures[part.architecture].is_estimate for part in question.variant.components.values())
