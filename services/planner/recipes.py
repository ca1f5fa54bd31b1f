"""Recipes: what a plan tells the worker to do, component by component, and how long each phase may stay silent.

Knows nothing of why. Invariant: the worker needs nothing else, the catalogue least of all.
"""

from __future__ import annotations

import json

from google.protobuf import duration_pb2

from darkroom.knowledge import Component
from darkroom.knowledge.family import Scheme
from darkroom.v1 import checkpoint_pb2, device_pb2, plan_pb2
from services.planner.candidates import Candidate
from services.planner.memory import Demand
from services.planner.question import RANDOM, Question
from services.planner.sizes import DENOISER, TEXT_ENCODER, VAE, Bytes
from services.planner.sources import QUANTISE, Parts, fetch_bytes, names_artifact

# Operations a second that even a poor part of its kind reaches: two processor cores, a laptop GPU.
_WORST_FLOPS = {device_pb2.DEVICE_KIND_CPU: 2e10}
_WORST_GPU_FLOPS = 1e13
# A step may take this many times its reckoned worst before it counts as hung.
_PATIENCE = 10
_LEAST_DENOISE_S = 60
_DOWNLOAD, _ASSEMBLE, _COMPILE, _NO_COMPILE, _OTHER = (
    duration_pb2.Duration(seconds=seconds) for seconds in (300, 600, 1200, 60, 120)
)


class Recipes:
    """What the plans of one question tell the worker. What several of them share is made once."""

    def __init__(self, question: Question, sizes: Bytes) -> None:
        self._question, self._sizes = question, sizes
        self._base = _base(question)
        self._idle = {is_compiled: _idle_budgets(question, is_compiled) for is_compiled in (False, True)}
        # By name and scheme, of what is read from no artifact.
        self._plain: dict[tuple[str, Scheme], plan_pb2.ComponentPlan] = {}

    def components(self, candidate: Candidate, artifacts: Parts) -> list[plan_pb2.ComponentPlan]:
        """Returns every weighted component with its scheme, in loading order; some are read from artifacts."""
        wanted = {DENOISER: candidate.scheme, TEXT_ENCODER: candidate.text_scheme, VAE: self._sizes.vae_scheme}
        return [
            self._component(name, part, wanted.get(part.role, device_pb2.SCHEME_NONE), artifacts.get(name))
            for name, part in self._question.variant.components.items()
        ]

    def _component(
        self, name: str, component: Component, wanted: Scheme, artifact: checkpoint_pb2.CheckpointSource | None
    ) -> plan_pb2.ComponentPlan:
        if artifact is None and (name, wanted) in self._plain:
            return self._plain[name, wanted]
        counted = self._question.catalogue.weights[component.architecture].schemes.get(wanted)
        is_taken = wanted == device_pb2.SCHEME_GGUF or (counted is not None and counted.num_tensors > 0)
        scheme = wanted if is_taken else device_pb2.SCHEME_NONE
        weight_bytes = self._sizes.of(component, scheme)
        told = _component_plan(self._question, name, component, scheme, weight_bytes, artifact if is_taken else None)
        if artifact is None:
            self._plain[name, wanted] = told
        return told

    def source(self, candidate: Candidate, needs: Demand, artifacts: Parts) -> checkpoint_pb2.CheckpointSource:
        """Returns where the pipeline is read from, and what that costs with these artifacts."""
        source = checkpoint_pb2.CheckpointSource()
        source.CopyFrom(self._base)
        if candidate.source.kind == QUANTISE and source.kind == checkpoint_pb2.CHECKPOINT_KIND_DENSE:
            source.kind = QUANTISE
        source.fetch_bytes = fetch_bytes(self._question, artifacts, self._sizes)
        source.transient_bytes = max([weights for _, weights, _ in needs.stages])
        source.steady_bytes = next(held for stage, held, _ in needs.stages if stage == plan_pb2.MEMORY_STAGE_DENOISE)
        return source

    def idle(self, is_compiled: bool) -> plan_pb2.IdleBudgets:
        """Returns the longest silence of each phase."""
        return self._idle[is_compiled]


def _base(question: Question) -> checkpoint_pb2.CheckpointSource:
    """Returns where the pipeline is read from, but for what replaces parts of it."""
    source = question.catalogue.source(question.variant.name)
    if question.is_random and question.wishes.source.WhichOneof("location") is None:
        source.kind = RANDOM
    elif question.wishes.HasField("source") and question.denoiser_file is None and not names_artifact(question):
        source.CopyFrom(question.wishes.source)
    return source


def _component_plan(
    question: Question,
    name: str,
    component: Component,
    scheme: Scheme,
    weight_bytes: int,
    artifact: checkpoint_pb2.CheckpointSource | None,
) -> plan_pb2.ComponentPlan:
    architecture = question.catalogue.architectures[component.architecture]
    return plan_pb2.ComponentPlan(
        name=name,
        role=component.role,
        scheme=scheme,
        compute_type=component.compute_type or question.compute_type,
        weight_bytes=weight_bytes,
        recipe=_recipe(question, component.architecture, scheme),
        source=artifact if artifact is not None else _dense_source(question, component),
        dense_source=component.source if artifact is not None else None,
        class_name=architecture.class_name.partition(":")[2],
        num_parameters=0 if architecture.is_estimate else question.catalogue.weights[component.architecture].parameters,
        configuration=json.dumps(architecture.config, sort_keys=True) if question.is_random else "",
    )


def _recipe(question: Question, architecture: str, scheme: Scheme) -> plan_pb2.QuantisationRecipe | None:
    """Returns the catalogue's recipe, with what the caller wants otherwise."""
    recipe = question.catalogue.recipe(architecture, scheme)
    if recipe is None or scheme != device_pb2.SCHEME_FP8 or not question.wishes.HasField("fast_accumulate"):
        return recipe
    own = plan_pb2.QuantisationRecipe()
    own.CopyFrom(recipe)
    own.fast_accumulate = question.wishes.fast_accumulate
    return own


def _dense_source(question: Question, component: Component) -> checkpoint_pb2.CheckpointSource | None:
    """Returns where a component's own weights are; None where they come with the pipeline."""
    if question.is_random:
        return None
    if component.role == DENOISER and question.denoiser_file is not None:
        return question.denoiser_file
    return component.source


def _idle_budgets(question: Question, is_compiled: bool) -> plan_pb2.IdleBudgets:
    """Returns the longest silence of each phase: generous, since a slow step under pressure is no hang."""
    worst = question.step_flops / _WORST_FLOPS.get(question.device.kind, _WORST_GPU_FLOPS)
    step = duration_pb2.Duration(seconds=int(_LEAST_DENOISE_S + _PATIENCE * worst))
    other = step if step.seconds > _OTHER.seconds else _OTHER
    return plan_pb2.IdleBudgets(
        download=_DOWNLOAD,
        assemble=_ASSEMBLE,
        compile=_COMPILE if is_compiled else _NO_COMPILE,
        encode=other,
        denoise=step,
        decode=other,
    )
