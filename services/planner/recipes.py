"""Recipes: what a plan tells the worker to do, component by component, call by call, phase by phase.

Knows nothing of why. Invariant: the worker needs nothing else, the catalogue least of all.
"""

from __future__ import annotations

from google.protobuf import duration_pb2

from darkroom.knowledge import Component
from darkroom.knowledge.recipes import recipe_of
from darkroom.v1 import device_pb2, plan_pb2
from services.planner.candidates import Candidate
from services.planner.question import Question
from services.planner.sizes import DENOISER, TEXT_ENCODER, component_bytes

# Multiplications a second that even a poor part of its kind reaches: 2 CPU cores, a laptop GPU.
_WORST_FLOPS = {device_pb2.DEVICE_KIND_CPU: 2e10}
_WORST_GPU_FLOPS = 1e13
# A step may take this many times its reckoned worst before it counts as hung.
_PATIENCE = 10
_LEAST_DENOISE_S = 60


def component_plans(question: Question, candidate: Candidate) -> list[plan_pb2.ComponentPlan]:
    """Returns every weighted component with its scheme, in loading order."""
    return [_component_plan(question, candidate, *item) for item in question.variant.components.items()]


def _component_plan(
    question: Question, candidate: Candidate, name: str, component: Component
) -> plan_pb2.ComponentPlan:
    wanted = {DENOISER: candidate.scheme, TEXT_ENCODER: candidate.text_scheme}.get(
        component.role, device_pb2.SCHEME_NONE
    )
    scheme = wanted if wanted in question.catalogue.weights[component.architecture].schemes else device_pb2.SCHEME_NONE
    architecture = question.catalogue.architectures[component.architecture]
    rule = question.catalogue.schemes.get(scheme)
    return plan_pb2.ComponentPlan(
        name=name,
        role=component.role,
        scheme=scheme,
        compute_type=component.compute_type or question.compute_type,
        weight_bytes=component_bytes(question, component, scheme),
        recipe=recipe_of(rule, architecture, scheme) if rule else None,
        class_name=architecture.class_name.partition(":")[2],
    )


def idle_budgets(question: Question, is_compiled: bool) -> plan_pb2.IdleBudgets:
    """Returns the longest silence of each phase: generous, since a slow step under pressure is no hang."""
    parameters = max(
        question.catalogue.weights[part.architecture].parameters
        for part in question.variant.components.values()
        if part.role == DENOISER
    )
    flops = 2 * parameters * (question.num_tokens + question.variant.limits.max_prompt_tokens)
    worst = flops / _WORST_FLOPS.get(question.device.kind, _WORST_GPU_FLOPS)
    step_s = int(_LEAST_DENOISE_S + _PATIENCE * worst)
    return plan_pb2.IdleBudgets(
        download=duration_pb2.Duration(seconds=300),
        assemble=duration_pb2.Duration(seconds=600),
        compile=duration_pb2.Duration(seconds=1200 if is_compiled else 60),
        encode=duration_pb2.Duration(seconds=max(120, step_s)),
        denoise=duration_pb2.Duration(seconds=step_s),
        decode=duration_pb2.Duration(seconds=max(120, step_s)),
    )
