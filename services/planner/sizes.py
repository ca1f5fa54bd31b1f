"""Bytes of a candidate: the catalogue's counts under the schemes that it picks, and activations at the workload's size.

Knows nothing of budgets. Invariant: a figure that nobody measured is reckoned from above, never below.
"""

from __future__ import annotations

from darkroom.knowledge import Component
from darkroom.knowledge.family import Activations as TokenBytes
from darkroom.knowledge.family import Decoding, Scheme
from darkroom.knowledge.sizes import ITEM_BYTES, Footprint
from darkroom.v1 import device_pb2, plan_pb2
from services.planner.placement import Activations, Weights
from services.planner.question import Question

DENOISER = plan_pb2.COMPONENT_ROLE_DENOISER
TEXT_ENCODER = plan_pb2.COMPONENT_ROLE_TEXT_ENCODER
VAE = plan_pb2.COMPONENT_ROLE_VAE

# Where an architecture has no figure: above all that have one.
UNMEASURED_TOKEN = TokenBytes(1_500_000.0)
UNMEASURED_VAE = Decoding(11_000.0, 1_800.0, 8e8, 1.2e8, 24.0, 11.0)
# Q8_0: blocks of 32 weights in 34 bytes. Q2_K and Q8_0 files of 3.64 and 7.22 GiB were measured at 3.68 and 7.25.
Q8_0_BYTES = 34 / 32
GGUF_SLACK = 1.05
# The output once more, on its way to the host.
OUTPUT_CHANNELS = 3


class Bytes:
    """Bytes of each component under each scheme, put together once for a question."""

    def __init__(self, question: Question, vae_scheme: Scheme = device_pb2.SCHEME_NONE) -> None:
        self._question = question
        self.vae_scheme = vae_scheme
        self._weights: dict[tuple[Scheme, Scheme, bool], Weights] = {}
        # (all, largest expert, streamed) by scheme; (all, largest) by scheme.
        self._denoising: dict[Scheme, tuple[int, int, int]] = {}
        self._encoding: dict[Scheme, tuple[int, int]] = {}
        parts = question.variant.components.values()
        # Of everything, unquantised.
        self.dense = sum([self.of(part, device_pb2.SCHEME_NONE) for part in parts])
        self._denoisers = [part for part in parts if part.role == DENOISER]
        self._texts = [part for part in parts if part.role == TEXT_ENCODER]
        self._text_layer = self._largest_layer(self._texts)
        self._denoiser_layer = self._largest_layer(self._denoisers)
        self._companions = sum(
            [
                self.of(part, vae_scheme if part.role == VAE else device_pb2.SCHEME_NONE)
                for part in parts
                if part.role not in (DENOISER, TEXT_ENCODER)
            ]
        )

    def of(self, component: Component, scheme: Scheme) -> int:
        """Returns the device bytes of one component's weights."""
        if scheme == device_pb2.SCHEME_GGUF and component.role == DENOISER:
            return self._packed_bytes(component)
        return self._footprint(component, scheme).resident

    def _footprint(self, component: Component, scheme: Scheme) -> Footprint:
        question = self._question
        item = ITEM_BYTES[component.compute_type] if component.compute_type else question.item_bytes
        # A GGUF file is no scheme of the catalogue's: what does not come from one is dense.
        known = device_pb2.SCHEME_NONE if scheme == device_pb2.SCHEME_GGUF else scheme
        return question.catalogue.footprints[component.architecture, known, item]

    def _packed_bytes(self, component: Component) -> int:
        """Returns what a GGUF file takes: it stays packed, with a twentieth for what is unpacked at a time."""
        file_bytes = self._question.gguf.size_bytes if self._question.gguf else 0
        parameters = self._question.catalogue.weights[component.architecture].parameters
        return int((file_bytes or parameters * Q8_0_BYTES) * GGUF_SLACK)

    def weights(self, scheme: Scheme, text_scheme: Scheme, visits_dense: bool) -> Weights:
        """Returns the bytes of all components.

        Args:
            scheme: of the denoisers.
            text_scheme: of the text encoders.
            visits_dense: dense layers visit the device one by one, to be quantised there; with adapters to bake, each
                denoiser visits it whole.
        """
        key = (scheme, text_scheme, visits_dense)
        if key not in self._weights:
            self._weights[key] = self._reckon(scheme, text_scheme, visits_dense)
        return self._weights[key]

    def _reckon(self, scheme: Scheme, text_scheme: Scheme, visits_dense: bool) -> Weights:
        if scheme not in self._denoising:
            denoisers = [self.of(part, scheme) for part in self._denoisers]
            streamed = max([self._footprint(part, scheme).streamed for part in self._denoisers])
            self._denoising[scheme] = (sum(denoisers), max(denoisers), streamed)
        if text_scheme not in self._encoding:
            texts = [self.of(part, text_scheme) for part in self._texts]
            self._encoding[text_scheme] = (sum(texts), max(texts, default=0))
        all_denoisers, expert, streamed = self._denoising[scheme]
        text, text_encoder = self._encoding[text_scheme]
        return Weights(
            denoiser=all_denoisers,
            expert=expert,
            text=text,
            text_encoder=text_encoder,
            companions=self._companions,
            text_layer=self._text_layer,
            denoiser_layer=self._denoiser_layer,
            streamed_denoiser=streamed,
            loading=self._loading(all_denoisers, expert) if visits_dense else 0,
        )

    def _loading(self, all_denoisers: int, expert: int) -> int:
        """Returns the peak while quantising: what is done already, and what is still dense on the device."""
        if any(adapter.weight for adapter in self._question.wishes.adapters):
            return all_denoisers - expert + max(self.of(part, device_pb2.SCHEME_NONE) for part in self._denoisers)
        return all_denoisers + self._denoiser_layer

    def _largest_layer(self, parts: list[Component]) -> int:
        counted = self._question.catalogue.weights
        largest = max([counted[part.architecture].largest_layer_parameters for part in parts], default=0)
        return largest * self._question.item_bytes


def activations_of(question: Question, slices: bool) -> Activations:
    """Returns what each stage needs beside weights, at the workload's size."""
    catalogue, work, scale = question.catalogue, question.workload, question.item_bytes / 2
    call, references = question.variant.call, work.reference_images
    words = question.variant.limits.max_prompt_tokens + references * call.reference_prompt_tokens
    prompt = words * work.batch_size
    # The VAE reads what a request brings one by one, each like a picture that it makes.
    read_pixels = call.reference_pixels if references else 0
    pictures = 1 if slices else work.batch_size
    encode = denoise = decode = tiled = 0.0
    for component in question.variant.components.values():
        if component.role == DENOISER:
            each = catalogue.activations.get(component.architecture, UNMEASURED_TOKEN).bytes_each
            tokens = (question.num_tokens + prompt) * question.variant.guided_batch
            denoise = max(denoise, tokens * each * scale)
        elif component.role == TEXT_ENCODER:
            each = catalogue.activations.get(component.architecture, UNMEASURED_TOKEN).bytes_each
            encode = max(encode, prompt * each * scale)
        elif component.role == VAE and component.architecture in catalogue.decoding:
            item = ITEM_BYTES[component.compute_type or question.compute_type]
            figures = catalogue.decoding[component.architecture]
            whole, tiles = _decoding(figures, work, pictures, read_pixels, item)
            decode, tiled = max(decode, whole), max(tiled, tiles)
    if not decode:
        decode, tiled = _decoding(UNMEASURED_VAE, work, pictures, read_pixels, question.item_bytes)
    return Activations(int(encode), int(denoise), int(decode), int(min(decode, tiled)))


def _decoding(
    figures: Decoding, work: plan_pb2.Workload, pictures: int, read_pixels: int, item: int
) -> tuple[float, float]:
    """Returns the bytes of decoding, or reading, whole and in tiles."""
    pixels, frames = max(work.width * work.height * pictures, read_pixels), work.num_frames
    output = pixels * frames * OUTPUT_CHANNELS * item
    whole = pixels * (figures.bytes_per_pixel + figures.bytes_per_pixel_frame * frames)
    tile = figures.tile_bytes + figures.tile_bytes_per_frame * frames
    kept = pixels * (figures.tiled_bytes_per_pixel + figures.tiled_bytes_per_pixel_frame * frames)
    factor = figures.kernel_factor
    return whole * factor * item / 2 + output, (max(tile, 0) * factor + kept) * item / 2 + output


def is_estimate(question: Question) -> bool:
    """Tells whether some component's configuration could not be read from its owner."""
    architectures = question.catalogue.architectures
    return any(architectures[part.architecture].is_estimate for part in question.variant.components.values())
