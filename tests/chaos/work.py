"""What the clients ask for: jobs of many kinds, tenants and models, drawn from a seed, with the ends they may come to.

Knows nothing of clients or faults. Invariant: a task is a function of seed and number alone.
"""

from __future__ import annotations

import random
import uuid
from dataclasses import dataclass

from darkroom.v1 import generation_pb2, job_pb2

# Kinds of jobs: how often, what the prompt orders, and how the job has to end (a state, or a failure's reason).
SUCCEEDED, CANCELLED, LATE = "SUCCEEDED", "CANCELLED", "DEADLINE_EXCEEDED"
KINDS: dict[str, tuple[float, str, str]] = {
    "plain": (70, "", SUCCEEDED),
    "slow": (8, "rehearse: steps of 0.2 s", SUCCEEDED),
    "large": (6, "rehearse: file of 600000 bytes", SUCCEEDED),
    "hesitating": (3, "rehearse: hang for 0.8 s at step 2", SUCCEEDED),
    "freezing": (3, "rehearse: freeze for 0.8 s at step 2", SUCCEEDED),
    "slow decoding": (2, "rehearse: hang for 0.5 s while decoding", SUCCEEDED),
    "due": (5, "rehearse: steps of 0.3 s", SUCCEEDED),
    "poison": (0.8, "rehearse: crash at step 2", "POISON"),
    "faulting": (0.4, "rehearse: segfault at step 1", "POISON"),
    "hanging": (0.4, "rehearse: hang at step 2", "POISON"),
    "broken": (0.8, "rehearse: broken at step 2", "BROKEN_OUTPUT"),
}
# From when it is accepted, for jobs that are due: for some too short however idle the workers are.
DEADLINES_S = (0.5, 20.0)
TENANTS = {"default": 6, "ann": 3, "bob": 1}
MODELS = {"emoji": 9, "emoji-cold": 1}
# How a client goes about it.
WAYS = {"submit": 60, "submit twice": 8, "submit and cancel": 4, "generate": 18, "generate and drop": 4, "blink": 6}


@dataclass(frozen=True)
class Task:
    """One job to be asked for."""

    number: int
    kind: str
    way: str
    expected: str
    request_id: str
    request: generation_pb2.GenerationRequest
    # How many events a client waits for before it cancels, drops or blinks.
    patience: int
    tenant: str
    # Seconds from acceptance until the job must have ended; 0: for ever.
    deadline_s: float

    @property
    def is_innocent(self) -> bool:
        """True if nothing in it can end an engine."""
        return self.expected == SUCCEEDED

    @property
    def terms(self) -> job_pb2.JobTerms:
        """What is asked for beside the picture."""
        terms = job_pb2.JobTerms()
        if self.deadline_s:
            terms.deadline.FromMilliseconds(int(self.deadline_s * 1000))
        return terms


def make_task(seed: int, number: int) -> Task:
    """Returns the task with this number."""
    dice = random.Random(f"darkroom work {seed} {number}")
    kind = dice.choices(list(KINDS), [weight for weight, _, _ in KINDS.values()])[0]
    way = dice.choices(list(WAYS), list(WAYS.values()))[0]
    _, orders, expected = KINDS[kind]
    request = generation_pb2.GenerationRequest(
        model=_draw(dice, MODELS),
        prompt=f"job {number} {orders}",
        steps=dice.randint(3, 8),
        seed=dice.getrandbits(53),
    )
    request_id = str(uuid.UUID(int=dice.getrandbits(128), version=4))
    patience, tenant = dice.randint(1, 8), _draw(dice, TENANTS)
    deadline_s = round(dice.uniform(*DEADLINES_S), 3) if kind == "due" else 0.0
    return Task(number, kind, way, expected, request_id, request, patience, tenant, deadline_s)


def _draw(dice: random.Random, weights: dict[str, int]) -> str:
    return dice.choices(list(weights), list(weights.values()))[0]
