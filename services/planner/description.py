"""The description of a candidate as a whole plan: everything that the worker needs, and why.

Knows nothing of the other candidates. Invariant: a fallback is described exactly as a first choice is.
"""

from __future__ import annotations

from darkroom.v1 import device_pb2, model_pb2, plan_pb2
from services.planner import speed
from services.planner.candidates import Candidate
from services.planner.memory import Supply, budget_message
from services.planner.placement import NONE
from services.planner.question import Question
from services.planner.recipes import base_source, component_plans, idle_budgets
from services.planner.sizes import Bytes, is_estimate
from services.planner.sources import replaced_parts
from services.planner.words import SCHEME_NAMES, reason, size

# Tiles that a plan asks for: half the side of the largest class's own, which do nothing below a megapixel.
TILE_SIDE = 512
# Schemes whose products nobody has run on the GPUs that have units for them.
UNVERIFIED = {device_pb2.SCHEME_MXFP8, device_pb2.SCHEME_NVFP4}


def describe(
    question: Question,
    supply: Supply,
    sizes: Bytes,
    candidate: Candidate,
    *,
    is_eager: bool = False,
    is_dense: bool = False,
) -> plan_pb2.Plan:
    """Returns the plan of a candidate, without fallbacks; an eager one compiles nothing, a dense one reads no artifact.

    Raises:
        PlanRefusedError: an explicit attention kernel or step cache can't be honoured.
    """
    variant, placement, is_video = question.variant, candidate.placement, question.workload.num_frames > 1
    compiled = None if is_eager else speed.compile_plan(question, placement, candidate.scheme)
    artifacts = {} if is_dense else replaced_parts(question, candidate.source, candidate.text_scheme)
    needs, step_cache = candidate.demand, speed.step_cache(question, candidate.scheme)
    plan = plan_pb2.Plan(
        model=variant.name,
        family=variant.family,
        engine=question.engine,
        pipeline_class=variant.pipeline_class,
        source=base_source(question, candidate, needs, sizes, artifacts),
        components=component_plans(question, candidate, sizes, artifacts),
        compute_type=question.compute_type,
        offload=placement.tier,
        streams_text_encoders=placement.streams_text_encoders,
        vae_tiling=placement.tiles,
        vae_tile_side=TILE_SIDE if placement.tiles and not is_video else 0,
        vae_slicing=placement.tier != NONE or question.device.has_unified_memory,
        speed_mode=speed.speed_mode(question, compiled is not None),
        attention=speed.attention(question, compiled is not None),
        step_cache=step_cache,
        compile=compiled,
        adapters=_adapters(question, candidate),
        call=_call(question, step_cache),
        workload=question.workload,
        memory=budget_message(supply, needs, candidate.fill),
        idle=idle_budgets(question, compiled is not None),
        catalogue_digest=question.catalogue.digest,
        is_assumed=question.device.is_assumed and not _is_plain(candidate),
        is_estimate=is_estimate(question),
        assembly_hooks=variant.assembly_hooks,
        least_diffusers=variant.least_diffusers,
    )
    is_compiled = compiled is not None
    plan.step.CopyFrom(
        speed.step_estimate(question, placement, candidate.scheme, is_compiled, candidate.streamed_bytes)
    )
    plan.reasons.extend(_reasons(question, supply, candidate, plan))
    return plan


def _call(question: Question, step_cache: plan_pb2.StepCache) -> plan_pb2.CallRecipe:
    """Returns the family's recipe; with first-block caching every picture is made alone.

    It reuses a step for all pictures of a call or for none, by how they changed together: neighbours would decide.
    """
    limits = question.variant.limits
    is_alone = step_cache.kind == plan_pb2.STEP_CACHE_KIND_FIRST_BLOCK
    if not limits.image_input and not is_alone:
        return question.variant.call
    recipe = plan_pb2.CallRecipe()
    recipe.CopyFrom(question.variant.call)
    recipe.needs_image = limits.image_input == model_pb2.IMAGE_INPUT_REQUIRED
    recipe.max_images = limits.max_reference_images
    if is_alone:
        recipe.max_batch = 1
    return recipe


def _is_plain(candidate: Candidate) -> bool:
    return {candidate.scheme, candidate.text_scheme} == {device_pb2.SCHEME_NONE}


def _adapters(question: Question, candidate: Candidate) -> plan_pb2.AdapterPlan | None:
    wanted = question.wishes.adapters
    if not wanted:
        return None
    return plan_pb2.AdapterPlan(adapters=wanted, is_baked=candidate.scheme != device_pb2.SCHEME_NONE)


def _reasons(question: Question, supply: Supply, candidate: Candidate, plan: plan_pb2.Plan) -> list[plan_pb2.Reason]:
    needs = size(candidate.required)
    if supply.is_known:
        limit = size(plan.memory.limit_bytes)
        reasons = [reason("FITS", f"{candidate.title}: needs {needs}, may fill {limit} of {size(supply.total)}.")]
    else:
        reasons = [reason("MEMORY_UNKNOWN", f"{candidate.title}: needs {needs}; the device did not tell its memory.")]
    reasons += question.reasons
    if count := plan.workload.reference_images:
        pictures = "one picture" if count == 1 else f"{count} pictures"
        sentence = f"Reckons {pictures} that a request brings, {question.reference_tokens:,} tokens of the denoiser's."
        reasons.append(reason("REFERENCES", sentence))
    if plan.step.ratio:
        sentence = f"A step takes {plan.step.ratio:g} times the dense resident one's time: {plan.step.source}."
        reasons.append(reason("STEP_TIME", sentence))
    else:
        reasons.append(reason("STEP_TIME_UNKNOWN", f"How long a step takes is not known: {plan.step.source}."))
    if plan.source.fetch_bytes:
        reasons.append(reason("DOWNLOAD", f"{size(plan.source.fetch_bytes)} are still to be fetched."))
    if plan.is_assumed:
        sentence = f"probe: assumed: {SCHEME_NAMES[candidate.scheme]} rests on the device's capability alone."
        reasons.append(reason("PROBE_ASSUMED", sentence))
    if UNVERIFIED & {part.scheme for part in plan.components if not part.recipe.weight_only}:
        sentence = (
            "Unverified on hardware: products with block scales were never run on the GPUs that have units for them."
        )
        reasons.append(reason("UNVERIFIED_ON_HARDWARE", sentence))
    if plan.is_estimate:
        sentence = "Some bytes are estimates: a configuration could not be read from its owner."
        reasons.append(reason("BYTES_ESTIMATED", sentence))
    return reasons
