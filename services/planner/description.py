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
from services.planner.recipes import Recipes
from services.planner.sizes import Bytes, is_estimate
from services.planner.sources import replaced_parts
from services.planner.words import SCHEME_NAMES, size

# Tiles that a plan asks for: half the side of the largest class's own, which do nothing below a megapixel.
TILE_SIDE = 512
# Schemes whose products nobody has run on the GPUs that have units for them.
UNVERIFIED = {device_pb2.SCHEME_MXFP8, device_pb2.SCHEME_NVFP4}
UNVERIFIED_SENTENCE = (
    "Unverified on hardware: products with block scales were never run on the GPUs that have units for them."
)


class Describer:
    """Writes candidates of one question down as plans. What all of them share is made once."""

    def __init__(self, question: Question, supply: Supply, sizes: Bytes) -> None:
        self._question, self._supply, self._sizes = question, supply, sizes
        self._recipes = Recipes(question, sizes)
        variant = question.variant
        self._common = plan_pb2.Plan(
            model=variant.name,
            family=variant.family,
            engine=question.engine,
            pipeline_class=variant.pipeline_class,
            compute_type=question.compute_type,
            call=_call(question),
            workload=question.workload,
            catalogue_digest=question.catalogue.digest,
            is_estimate=is_estimate(question),
            assembly_hooks=variant.assembly_hooks,
            least_diffusers=variant.least_diffusers,
        )

    def write(
        self, plan: plan_pb2.Plan, candidate: Candidate, *, is_eager: bool = False, is_dense: bool = False
    ) -> None:
        """Makes `plan` a candidate's, without fallbacks; an eager one compiles nothing, a dense one reads no artifact.

        Raises:
            PlanRefusedError: an explicit attention kernel or step cache can't be honoured.
        """
        question, placement, scheme = self._question, candidate.placement, candidate.scheme
        needs = candidate.demand
        plan.CopyFrom(self._common)
        plan.step_cache.CopyFrom(speed.step_cache(question, scheme))
        plan.offload = placement.tier
        plan.streams_text_encoders = placement.streams_text_encoders
        plan.vae_tiling = placement.tiles
        if placement.tiles and question.workload.num_frames == 1:
            plan.vae_tile_side = TILE_SIDE
        plan.vae_slicing = placement.tier != NONE or question.device.has_unified_memory
        plan.is_assumed = question.device.is_assumed and not _is_plain(candidate)
        self._write_speed(plan, candidate, is_eager)
        artifacts = {} if is_dense else replaced_parts(question, self._sizes, candidate.source, candidate.text_scheme)
        plan.source.CopyFrom(self._recipes.source(candidate, needs, artifacts))
        for component in self._recipes.components(candidate, artifacts):
            plan.components.add().CopyFrom(component)
        if question.wishes.adapters:
            plan.adapters.adapters.extend(question.wishes.adapters)
            plan.adapters.is_baked = scheme != device_pb2.SCHEME_NONE
        plan.memory.CopyFrom(budget_message(self._supply, needs, candidate.fill))
        _write_reasons(plan, question, self._supply, candidate)

    def _write_speed(self, plan: plan_pb2.Plan, candidate: Candidate, is_eager: bool) -> None:
        """Adds compilation, attention kernel and idle budgets, and how long a step should take."""
        question, placement, scheme = self._question, candidate.placement, candidate.scheme
        compiled = None if is_eager else speed.compile_plan(question, placement, scheme)
        is_compiled = compiled is not None
        if compiled is not None:
            plan.compile.CopyFrom(compiled)
        plan.speed_mode = speed.speed_mode(question, is_compiled)
        plan.attention = speed.attention(question, is_compiled)
        plan.idle.CopyFrom(self._recipes.idle(is_compiled))
        estimate = speed.step_estimate(question, placement, scheme, is_compiled, candidate.streamed_bytes)
        plan.step.CopyFrom(estimate)


def _call(question: Question) -> plan_pb2.CallRecipe:
    """Returns the family's recipe; with first-block caching every picture is made alone.

    It reuses a step for all pictures of a call or for none, by how they changed together: neighbours would decide.
    """
    limits = question.variant.limits
    is_alone = question.wishes.step_cache == plan_pb2.STEP_CACHE_KIND_FIRST_BLOCK
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


def _write_reasons(plan: plan_pb2.Plan, question: Question, supply: Supply, candidate: Candidate) -> None:
    add, needs = plan.reasons.add, size(candidate.required)
    if supply.is_known:
        limit = size(plan.memory.limit_bytes)
        sentence = f"{candidate.title}: needs {needs}, may fill {limit} of {size(supply.total)}."
        add(code="FITS", sentence=sentence)
    else:
        sentence = f"{candidate.title}: needs {needs}; the device did not tell its memory."
        add(code="MEMORY_UNKNOWN", sentence=sentence)
    plan.reasons.extend(question.reasons)
    if count := plan.workload.reference_images:
        pictures = "one picture" if count == 1 else f"{count} pictures"
        sentence = f"Reckons {pictures} that a request brings, {question.reference_tokens:,} tokens of the denoiser's."
        add(code="REFERENCES", sentence=sentence)
    step = plan.step
    if step.ratio:
        sentence = f"A step takes {step.ratio:g} times the dense resident one's time: {step.source}."
        add(code="STEP_TIME", sentence=sentence)
    else:
        add(code="STEP_TIME_UNKNOWN", sentence=f"How long a step takes is not known: {step.source}.")
    if plan.source.fetch_bytes:
        add(code="DOWNLOAD", sentence=f"{size(plan.source.fetch_bytes)} are still to be fetched.")
    if plan.is_assumed:
        sentence = f"probe: assumed: {SCHEME_NAMES[candidate.scheme]} rests on the device's capability alone."
        add(code="PROBE_ASSUMED", sentence=sentence)
    if any(part.scheme in UNVERIFIED and not part.recipe.weight_only for part in plan.components):
        add(code="UNVERIFIED_ON_HARDWARE", sentence=UNVERIFIED_SENTENCE)
    if plan.is_estimate:
        sentence = "Some bytes are estimates: a configuration could not be read from its owner."
        add(code="BYTES_ESTIMATED", sentence=sentence)
