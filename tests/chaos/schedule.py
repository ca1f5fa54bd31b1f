"""What goes wrong, when: a list that a seed gives, the same each time.

Knows nothing of processes. Invariant: the schedule is a function of seed, length and size alone.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

# Deeds and how often each comes, relative to the others.
WEIGHTS = {
    "kill gateway": 9,
    "kill worker": 12,
    "kill engine": 9,
    "kill redis": 3,
    "kill planner": 2,
    "kill all gateways": 1,
    "kill everything": 1,
    "term gateway": 5,
    "term worker": 5,
    "stop gateway": 7,
    "stop worker": 6,
    "stop engine": 4,
    "cut redis": 5,
    "cut worker": 6,
    "stall redis": 4,
    "stall worker": 4,
    "slow redis": 3,
    "slow worker": 3,
    "full disk": 5,
    "step clock": 5,
}
# Of those that last, how long, in leases.
LENGTHS = {"stop": (0.3, 2.5), "cut": (0.2, 2.0), "stall": (0.3, 2.0), "slow": (1.0, 3.0), "full": (0.5, 1.5)}


@dataclass(frozen=True)
class Deed:
    """One fault.

    Args:
        at_s: seconds after the start.
        kind: a key of WEIGHTS.
        gateway: whom it hits, where it hits a gateway or one of its wires.
        worker: likewise.
        seconds: how long it lasts, or how long a killed process stays away.
        amount: seconds of a delay, or of a clock's step.
    """

    at_s: float
    kind: str
    gateway: int
    worker: int
    seconds: float
    amount: float

    def describe(self) -> str:
        """One line for people; lines of two runs can be compared."""
        where = f"gateway-{self.gateway} worker-{self.worker}"
        return f"{self.at_s:8.2f} s  {self.kind:18} {where:20} for {self.seconds:5.2f} s, {self.amount:+.3f} s"


def make_schedule(
    seed: int, seconds: float, num_gateways: int, num_workers: int, lease_s: float, period_s: float = 1.0
) -> Iterator[Deed]:
    """Yields a deed every `period_s` on average."""
    dice = random.Random(f"darkroom chaos {seed}")
    at_s = 0.0
    while (at_s := at_s + period_s * dice.uniform(0.5, 1.5)) < seconds:
        kind = dice.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
        shortest, longest = LENGTHS.get(kind.split()[0], (0.05, 0.4))
        amount = dice.uniform(-1.5, 1.5) * lease_s if kind == "step clock" else dice.uniform(0.02, 0.25)
        yield Deed(
            at_s,
            kind,
            dice.randrange(num_gateways),
            dice.randrange(num_workers),
            dice.uniform(shortest, longest) * lease_s,
            amount,
        )
