"""One picture: the call's arguments, progress at every step, and the checks before it counts as made.

Knows nothing of how the pipeline was put together. Invariants: the picture depends on request and plan alone (noise is
drawn on the processor); a cancel is heeded at the next step; nothing non-finite is returned.
"""

from __future__ import annotations

import contextlib
import inspect
import time
from collections.abc import Iterator
from typing import Any

import torch

from darkroom.rpc.errors import BrokenOutputError
from darkroom.v1 import generation_pb2, plan_pb2, worker_pb2
from services.worker.engine.assembly.caching import renew_cache
from services.worker.engine.assembly.rules import called_by_rules
from services.worker.engine.assembly.stage import Assembly
from services.worker.engine.pictures import describe, encode, quantise_pixels
from services.worker.engine.prompts import prompt_engagement
from services.worker.engine.reporting import ItemReporter

# Shares of the whole: denoising is nearly all of it, encoding comes before and decoding after.
WARM_UP_GUIDANCE = 4.0
DENOISING_FROM, DENOISING_TO = 0.05, 0.95


def generate(assembly: Assembly, item: worker_pb2.RunItem, report: ItemReporter) -> None:
    """Makes the item's picture and hands it to the report.

    Raises:
        BrokenOutputError: latents or pixels are not finite, or the picture is one colour.
        CancelledError: at a step boundary, when asked.
    """
    request, pipeline = item.request, assembly.pipeline
    arguments, engagements = call_arguments(pipeline, assembly.plan.call, request)
    engagements.append(prompt_engagement(pipeline, request.prompt, arguments))
    observer = Observer(request.steps, report)
    report.progress(generation_pb2.Progress(phase=generation_pb2.PHASE_ENCODING))
    denoiser = assembly.parts[_denoiser_name(assembly.plan)]
    renew_cache(assembly, request.steps)
    with (
        torch.inference_mode(),
        _observed(denoiser, getattr(pipeline, "vae", None), observer),
        _freed(assembly),
        called_by_rules(pipeline, assembly.plan, request),
    ):
        values_BHWC = pipeline(
            **arguments,
            generator=torch.Generator("cpu").manual_seed(request.seed),
            output_type="np",
            callback_on_step_end=observer.step_ended,
            callback_on_step_end_tensor_inputs=["latents"],
        ).images
    pixels_HWC = quantise_pixels(values_BHWC[0])
    data, content_type = encode(pixels_HWC, request.format)
    output = describe(data, content_type, pixels_HWC, request.seed)
    output.engagements.extend([observer.guidance_engagement(assembly.plan.call, request), *engagements])
    if (output.width, output.height) != (request.width, request.height):
        asked, got = f"{request.width}x{request.height}", f"{output.width}x{output.height}"
        reason = "the pipeline moved the size to its own lattice"
        output.engagements.add(knob="size", requested=asked, resolved=asked, engaged=got, reason=reason)
    report.finish(output, data)


def warm_up(assembly: Assembly) -> None:
    """Makes one step at the plan's size, guided, so that compiling happens while loading."""
    work, pipeline = assembly.plan.workload, assembly.pipeline
    request = generation_pb2.GenerationRequest(
        width=work.width, height=work.height, steps=1, guidance=WARM_UP_GUIDANCE, seed=0, negative_prompt=""
    )
    arguments, _ = call_arguments(pipeline, assembly.plan.call, request)
    renew_cache(assembly, 1)
    with torch.inference_mode(), _freed(assembly), called_by_rules(pipeline, assembly.plan, request):
        pipeline(**arguments, generator=torch.Generator("cpu").manual_seed(0), output_type="latent")


def call_arguments(
    pipeline: Any, recipe: plan_pb2.CallRecipe, request: generation_pb2.GenerationRequest
) -> tuple[dict[str, Any], list[generation_pb2.Engagement]]:
    """Returns the pipeline's arguments, and an engagement for each fixed one that the installed version lacks."""
    known = inspect.signature(type(pipeline).__call__).parameters
    arguments: dict[str, Any] = {
        "prompt": request.prompt,
        "width": request.width,
        "height": request.height,
        "num_inference_steps": request.steps,
    }
    if recipe.guidance_argument:
        arguments[recipe.guidance_argument] = request.guidance
    if recipe.takes_negative_prompt:
        arguments["negative_prompt"] = request.negative_prompt
    ignored = []
    for fixed in recipe.arguments:
        value = getattr(fixed, fixed.WhichOneof("value") or "string_value")
        if fixed.name in known:
            arguments[fixed.name] = value
        else:
            reason = f"the installed {type(pipeline).__name__} has no such argument"
            ignored.append(generation_pb2.Engagement(knob=f"argument:{fixed.name}", resolved=str(value), reason=reason))
    return arguments, ignored


class Observer:
    """Watches one call: tells its progress, heeds a cancel, checks its values, counts what the denoiser computed."""

    def __init__(self, steps: int, report: ItemReporter) -> None:
        self._steps = steps
        self._report = report
        self._began_at: float | None = None
        self._rows = 0

    def denoiser_called(self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Before every forward of the denoiser: the first one ends encoding."""
        if self._began_at is None:
            self._began_at = time.monotonic()
            self._denoising(0)
        latents = kwargs.get("hidden_states", args[0] if args else None)
        # Z-Image's takes a list of pictures.
        self._rows += len(latents) if isinstance(latents, torch.Tensor | list | tuple) else 1

    def step_ended(self, pipeline: Any, step: int, timestep: Any, values: dict[str, Any]) -> dict[str, Any]:
        """After every step."""
        self._report.check()
        self._denoising(step + 1)
        if step + 1 >= self._steps:
            if not torch.isfinite(values["latents"]).all():
                raise BrokenOutputError("the latents hold values that are not finite", problem="non_finite_latents")
            self._report.progress(generation_pb2.Progress(phase=generation_pb2.PHASE_DECODING, fraction=DENOISING_TO))
        return {}

    def decoded(self, module: torch.nn.Module, args: tuple[Any, ...], values: Any) -> None:
        """After the decoder: before clamping hides an infinity."""
        if isinstance(values, torch.Tensor) and not torch.isfinite(values).all():
            raise BrokenOutputError("the decoder gave values that are not finite", problem="non_finite_picture")

    def guidance_engagement(
        self, recipe: plan_pb2.CallRecipe, request: generation_pb2.GenerationRequest
    ) -> generation_pb2.Engagement:
        """Whether guidance really steered: two denoiser evaluations a step are classifier-free guidance."""
        num_guided = min(self._rows - self._steps, self._steps)
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
        self._report.progress(progress)


@contextlib.contextmanager
def _observed(denoiser: torch.nn.Module, vae: torch.nn.Module | None, observer: Observer) -> Iterator[None]:
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
def _freed(assembly: Assembly) -> Iterator[None]:
    """Has the pipeline put its offloaded parts back when a call ends midway: it does so itself only at the end."""
    try:
        yield
    except BaseException:
        assembly.pipeline.maybe_free_model_hooks()
        for visitor in assembly.visitors:
            visitor.offload()
        raise


def _denoiser_name(plan: plan_pb2.Plan) -> str:
    denoisers = [part.name for part in plan.components if part.role == plan_pb2.COMPONENT_ROLE_DENOISER]
    return (denoisers or [plan.components[0].name])[0]
