"""What the clients ask for: jobs of many kinds, drawn from a seed, each with the ends that it may come to.

Knows nothing of clients or faults. Invariant: a task is a function of seed and number alone.
"""

from __future__ import annotations

import random
import uuid
from dataclasses import dataclass

from darkroom.v1 import generation_pb2

# Kinds of jobs: how often, what the prompt orders, and how the job has to end (a state, or a failure's reason).
SUCCEEDED, CANCELLED = "SUCCEEDED", "CANCELLED"
KINDS: dict[str, tuple[float, str, str]] = {
    "plain": (70, "", SUCCEEDED),
    "slow": (8, "rehearse: steps of 0.2 s", SUCCEEDED),
    "large": (6, "rehearse: file of 600000 bytes", SUCCEEDED),
    "hesitating": (3, "rehearse: hang for 0.8 s at step 2", SUCCEEDED),
    "freezing": (3, "rehearse: freeze for 0.8 s at step 2", SUCCEEDED),
    "slow decoding": (2, "rehearse: hang for 0.5 s while decoding", SUCCEEDED),
    "poison": (0.8, "rehearse: crash at step 2", "POISON"),
    "faulting": (0.4, "rehearse: segfault at step 1", "POISON"),
    "hanging": (0.4, "rehearse: hang at step 2", "POISON"),
    "broken": (0.8, "rehearse: broken at step 2", "BROKEN_OUTPUT"),
}
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

    @property
    def is_innocent(self) -> bool:
        """True if nothing in it can end an engine."""
        return self.expected == SUCCEEDED


def make_task(seed: int, number: int) -> Task:
    """Returns the task with this number."""
    dice = random.Random(f"darkroom work {seed} {number}")
    kind = dice.choices(list(KINDS), [weight for weight, _, _ in KINDS.values()])[0]
    way = dice.choices(list(WAYS), list(WAYS.values()))[0]
    _, orders, expected = KINDS[kind]
    request = generation_pb2.GenerationRequest(
        model="emoji",
        prompt=f"job {number} {orders}",
        steps=dice.randint(3, 8),
        seed=dice.getrandbits(53),
    )
    request_id = str(uuid.UUID(int=dice.getrandbits(128), version=4))
    return Task(number, kind, way, expected, request_id, request, dice.randint(1, 8))
