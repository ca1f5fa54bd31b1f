"""Watches one pipeline call: tells its progress, heeds cancels, checks every picture's values, counts evaluations.

Knows nothing of how the call is made. Letters: B pictures of the call.
Invariant: a picture whose values are not finite fails alone, and so does a picture that is cancelled: its place in the
call is computed on, for pipelines can't be made narrower midway, until nobody wants any of the call's pictures.
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from darkroom.rpc.errors import BrokenOutputError, error_to_message
from darkroom.v1 import generation_pb2, plan_pb2
from services.worker.engine.inputs import Decoded
from services.worker.engine.reporting import ItemReporter, heed_cancels

# Shares of the whole: denoising is nearly all of it, encoding comes before and decoding after.
DENOISING_FROM, DENOISING_TO = 0.05, 0.95


class Observer:
    """One call's.

    Args:
        steps: of every picture.
        reports: one a picture, in order.
        compiles: the first step compiles for this many pictures, and takes its time.
    """

    def __init__(self, steps: int, reports: Sequence[ItemReporter], *, compiles: bool = False) -> None:
        self._steps = steps
        self._reports = reports
        self._compiles = compiles
        self._began_at: float | None = None
        self._rows = 0
        # Of pictures that were encoded, as "WIDTHxHEIGHT".
        self._encoded: list[str] = []

    def encoding(self) -> None:
        """The call begins."""
        self._tell(generation_pb2.Progress(phase=generation_pb2.PHASE_ENCODING))

    def denoiser_called(self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Before every forward of the denoiser: the first one ends encoding."""
        if self._began_at is None:
            self._began_at = time.monotonic()
            self._denoising(0)
            if self._compiles:
                detail = f"for {len(self._reports)} at once"
                self._tell(
                    generation_pb2.Progress(
                        phase=generation_pb2.PHASE_COMPILING, fraction=DENOISING_FROM, detail=detail
                    )
                )
        latents = kwargs.get("hidden_states", args[0] if args else None)
        # Z-Image's takes a list of pictures.
        self._rows += len(latents) if isinstance(latents, torch.Tensor | list | tuple) else len(self._reports)

    def step_ended(self, pipeline: Any, step: int, timestep: Any, values: dict[str, Any]) -> dict[str, Any]:
        """After every step."""
        heed_cancels(self._reports)
        self._denoising(step + 1)
        if step + 1 >= self._steps:
            self._check(values["latents"], "the latents hold values that are not finite", "non_finite_latents")
            self._tell(generation_pb2.Progress(phase=generation_pb2.PHASE_DECODING, fraction=DENOISING_TO))
        return {}

    def decoded(self, module: torch.nn.Module, args: tuple[Any, ...], values: Any) -> None:
        """After the decoder: before clamping hides an infinity."""
        if isinstance(values, torch.Tensor):
            self._check(values, "the decoder gave values that are not finite", "non_finite_picture")

    def guidance_engagement(
        self, recipe: plan_pb2.CallRecipe, request: generation_pb2.GenerationRequest
    ) -> generation_pb2.Engagement:
        """Whether guidance really steered: two denoiser evaluations a step are classifier-free guidance."""
        num_guided = min(self._rows // len(self._reports) - self._steps, self._steps)
        if num_guided > 0:
            engaged = f"{request.guidance:g} (classifier-free)"
            reason = f"in {num_guided} of {self._steps} steps" if num_guided < self._steps else ""
        elif recipe.takes_negative_prompt:
            engaged, reason = "off", "one evaluation a step: guidance of 1 or less steers nothing"
        else:
            engaged, reason = f"{request.guidance:g} (embedded)", ""
        return generation_pb2.Engagement(
            knob="guidance",
            requested=f"{request.guidance:g}",
            resolved=f"{recipe.guidance_argument}={request.guidance:g}",
            engaged=engaged,
            reason=reason,
        )

    def picture_encoded(self, values_BCHW: torch.Tensor) -> None:
        """Before every encoding by the VAE; videos have an axis of frames before their height."""
        height, width = values_BCHW.shape[-2:]
        self._encoded.append(f"{width}x{height}")

    def image_engagements(self, given: Sequence[Decoded]) -> list[generation_pb2.Engagement]:
        """Knob "images": sizes of the pictures that the request brought, and those at which they were encoded."""
        if not given:
            return []
        asked, engaged = ", ".join("x".join(map(str, one.picture.size)) for one in given), ", ".join(self._encoded)
        notes = [f"picture {place + 1} {note}" for place, one in enumerate(given) for note in one.notes]
        if engaged != asked:
            notes.append("the pipeline reads pictures at sizes of its own")
        return [
            generation_pb2.Engagement(
                knob="images", requested=asked, resolved=asked, engaged=engaged, reason="; ".join(notes)
            )
        ]

    def _check(self, values: torch.Tensor, problem: str, name: str) -> None:
        """Fails every picture whose values are not finite; raises where none is left, or it can't be told which.

        Args:
            values: B pictures, or, while they are decoded one by one, one of them.
        """
        if torch.isfinite(values).all():
            return
        failure = BrokenOutputError(problem, problem=name)
        if len(values) != len(self._reports):
            raise failure
        for row, report in zip(values, self._reports, strict=True):
            if not report.is_over and not torch.isfinite(row).all():
                report.fail(error_to_message(failure))
        if all(report.is_over for report in self._reports):
            raise failure

    def _denoising(self, completed: int) -> None:
        share = completed / self._steps
        progress = generation_pb2.Progress(
            phase=generation_pb2.PHASE_DENOISING,
            completed=completed,
            total=self._steps,
            fraction=DENOISING_FROM + (DENOISING_TO - DENOISING_FROM) * share,
        )
        if completed and self._began_at is not None:
            left_s = (time.monotonic() - self._began_at) / completed * (self._steps - completed)
            progress.eta.FromNanoseconds(int(left_s * 1e9))
        self._tell(progress)

    def _tell(self, progress: generation_pb2.Progress) -> None:
        for report in self._reports:
            if not report.is_over:
                report.progress(progress)


@contextlib.contextmanager
def observed(denoiser: torch.nn.Module, vae: torch.nn.Module | None, observer: Observer) -> Iterator[None]:
    """Hooks the observer in for the block."""
    hooks = [denoiser.register_forward_pre_hook(observer.denoiser_called, with_kwargs=True)]
    if (decoder := getattr(vae, "decoder", None)) is not None:
        hooks.append(decoder.register_forward_hook(observer.decoded))
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


@contextlib.contextmanager
def encodings_observed(vae: Any, observer: Observer) -> Iterator[None]:
    """Has the observer told of every picture that the VAE encodes in the block.

    Not by a hook of its encoder: that sees tiles where pictures are encoded in tiles.
    """
    encode, own = vae.encode, dict(vae.__dict__)

    @functools.wraps(encode)
    def watched(values_BCHW: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        observer.picture_encoded(values_BCHW)
        return encode(values_BCHW, *args, **kwargs)

    vae.__dict__["encode"] = watched
    try:
        yield
    finally:
        vae.__dict__.pop("encode")
        if "encode" in own:
            vae.__dict__["encode"] = own["encode"]
