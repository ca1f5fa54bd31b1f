"""One call of the pipeline: its arguments, and what becomes of each picture that it makes.

Knows nothing of how the pipeline was put together. Invariants: a picture depends on its request and the plan alone
(noise is drawn on the processor, a generator a picture; neighbours in the call change it within the family's stated
tolerance); a cancel is heeded at the next step; nothing non-finite is returned.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from PIL import Image

from darkroom.rpc.errors import BrokenOutputError, error_to_message
from darkroom.v1 import device_pb2, generation_pb2, plan_pb2, worker_pb2
from services.worker.engine.assembly.caching import renew_cache
from services.worker.engine.assembly.rules import called_by_rules
from services.worker.engine.assembly.stage import Assembly
from services.worker.engine.inputs import Decoded, decode_images
from services.worker.engine.observing import Observer, encodings_observed, observed
from services.worker.engine.pictures import check_variety, describe, encode, quantise_pixels
from services.worker.engine.prompts import prompt_engagement
from services.worker.engine.reporting import ItemReporter

WARM_UP_GUIDANCE = 4.0
# Schemes whose weights are plain tensors.
PLAIN_SCHEMES = {device_pb2.SCHEME_NONE, device_pb2.SCHEME_FP8_STORAGE, device_pb2.SCHEME_GGUF}


def most_at_once(assembly: Assembly) -> tuple[int, str]:
    """Returns how many pictures a call may make, and why not more."""
    if assembly.cache_kind == plan_pb2.STEP_CACHE_KIND_FIRST_BLOCK:
        return 1, "first-block caching reuses a step for all pictures of a call, or for none"
    most = max(1, assembly.plan.call.max_batch)
    return most, f"calls of this family make {most} at once at most"


def generate(assembly: Assembly, items: Sequence[worker_pb2.RunItem], reports: Sequence[ItemReporter]) -> None:
    """Makes the items' pictures in one call and hands each to its report.

    Args:
        assembly: what is loaded.
        items: of one size, steps and guidance; one alone where it brings pictures.
        reports: one an item, in order. One whose picture is not finite, or of one colour, is told so and leaves the
            others alone.

    Raises:
        InvalidRequestError: a picture that the item brings can't be read.
        BrokenOutputError: no picture of the call is left, or it can't be told which one is broken.
        CancelledError: at a step boundary, when all were asked to stop.
    """
    requests, pipeline = [item.request for item in items], assembly.pipeline
    request = requests[0]
    given = decode_images(request.images)
    arguments, engagements = call_arguments(pipeline, assembly.plan.call, requests, given)
    shape = (len(items), len(given))
    observer = Observer(request.steps, reports, compiles=assembly.is_compiled and shape not in assembly.compiled_for)
    observer.encoding()
    denoiser = assembly.parts[_denoiser_name(assembly.plan)]
    renew_cache(assembly, request.steps)
    for watcher in assembly.watchers:
        watcher.begin()
    with (
        without_gradients(assembly.plan),
        observed(denoiser, getattr(pipeline, "vae", None), observer),
        encodings_observed(pipeline.vae, observer) if given else contextlib.nullcontext(),
        _freed(assembly),
        called_by_rules(pipeline, assembly.plan, request),
    ):
        values_BHWC = pipeline(
            **arguments,
            generator=_generators(requests),
            output_type="np",
            callback_on_step_end=observer.step_ended,
            callback_on_step_end_tensor_inputs=["latents"],
        ).images
    assembly.compiled_for.add(shape)
    engagements += observer.image_engagements(given)
    engagements += [told for watcher in assembly.watchers for told in watcher.engagements()]
    for values_HWC, wanted, report in zip(values_BHWC, requests, reports, strict=True):
        if report.is_over:
            continue
        told = [observer.guidance_engagement(assembly.plan.call, wanted), *engagements]
        told.append(prompt_engagement(pipeline, wanted.prompt, arguments))
        try:
            _deliver(values_HWC, wanted, told, report)
        except BrokenOutputError as failure:
            report.fail(error_to_message(failure))


def _deliver(
    values_HWC: Any,
    request: generation_pb2.GenerationRequest,
    engagements: Sequence[generation_pb2.Engagement],
    report: ItemReporter,
) -> None:
    """Hands one picture to its report. Raises BrokenOutputError."""
    pixels_HWC = quantise_pixels(values_HWC)
    constant = check_variety(pixels_HWC, request.allows_constant)
    data, content_type = encode(pixels_HWC, request.format)
    output = describe(data, content_type, pixels_HWC, request.seed)
    output.engagements.extend([*engagements, *([constant] if constant is not None else [])])
    if (output.width, output.height) != (request.width, request.height):
        asked, got = f"{request.width}x{request.height}", f"{output.width}x{output.height}"
        reason = "the pipeline moved the size to its own lattice"
        output.engagements.add(knob="size", requested=asked, resolved=asked, engaged=got, reason=reason)
    report.finish(output, data)


def _generators(requests: Sequence[generation_pb2.GenerationRequest]) -> torch.Generator | list[torch.Generator]:
    """One a picture, each seeded by its own request: its noise is drawn as if it were alone."""
    generators = [torch.Generator("cpu").manual_seed(request.seed) for request in requests]
    return generators if len(generators) > 1 else generators[0]


def _each(requests: Sequence[generation_pb2.GenerationRequest], name: str) -> str | list[str]:
    texts = [str(getattr(request, name)) for request in requests]
    return texts if len(texts) > 1 else texts[0]


def warm_up(assembly: Assembly, steps: int = 1, *, decodes: bool = False) -> None:
    """Makes a step or more at the plan's size, guided, so that compiling happens while loading."""
    work, recipe, pipeline = assembly.plan.workload, assembly.plan.call, assembly.pipeline
    num_images = max(work.reference_images, int(recipe.needs_image))
    given = [Decoded(Image.new("RGB", (work.width, work.height)))] * num_images
    request = generation_pb2.GenerationRequest(
        width=work.width, height=work.height, steps=steps, guidance=WARM_UP_GUIDANCE, seed=0, negative_prompt=""
    )
    arguments, _ = call_arguments(pipeline, recipe, [request], given)
    renew_cache(assembly, steps)
    with without_gradients(assembly.plan), _freed(assembly), called_by_rules(pipeline, assembly.plan, request):
        output = "np" if decodes else "latent"
        pipeline(**arguments, generator=torch.Generator("cpu").manual_seed(0), output_type=output)
    assembly.compiled_for.add((1, num_images))


def without_gradients(plan: plan_pb2.Plan) -> contextlib.AbstractContextManager[object]:
    """Returns what a call runs in: inference mode, but where quantised weights are moved between devices meanwhile.

    A module can't give a parameter the storage of another device in inference mode, and torchao's tensors can't be
    given another way there (torch 2.13).
    """
    moves = plan.offload not in (plan_pb2.OFFLOAD_TIER_NONE, plan_pb2.OFFLOAD_TIER_UNSPECIFIED)
    is_plain = {part.scheme for part in plan.components} <= PLAIN_SCHEMES
    return torch.no_grad() if moves and not is_plain else torch.inference_mode()


def call_arguments(
    pipeline: Any,
    recipe: plan_pb2.CallRecipe,
    requests: Sequence[generation_pb2.GenerationRequest],
    given: Sequence[Decoded] = (),
) -> tuple[dict[str, Any], list[generation_pb2.Engagement]]:
    """Returns the pipeline's arguments, and an engagement for each fixed one that the installed version lacks.

    Args:
        pipeline: whose `__call__` is asked what it takes.
        recipe: of its family.
        requests: of one size, steps and guidance; several give lists of texts.
        given: pictures that a request brings, which is then the only one.
    """
    request = requests[0]
    known = inspect.signature(type(pipeline).__call__).parameters
    arguments: dict[str, Any] = {
        "prompt": _each(requests, "prompt"),
        "width": request.width,
        "height": request.height,
        "num_inference_steps": request.steps,
    }
    if recipe.guidance_argument:
        arguments[recipe.guidance_argument] = request.guidance
    if recipe.area_argument:
        arguments[recipe.area_argument] = request.width * request.height
    if given:
        pictures = [image.picture for image in given]
        arguments[recipe.image_argument] = pictures if len(pictures) > 1 else pictures[0]
    if recipe.takes_negative_prompt:
        arguments["negative_prompt"] = _each(requests, "negative_prompt")
    ignored = []
    for fixed in recipe.arguments:
        value = getattr(fixed, fixed.WhichOneof("value") or "string_value")
        if fixed.name in known:
            arguments[fixed.name] = value
        else:
            reason = f"the installed {type(pipeline).__name__} has no such argument"
            ignored.append(generation_pb2.Engagement(knob=f"argument:{fixed.name}", resolved=str(value), reason=reason))
    return arguments, ignored


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
