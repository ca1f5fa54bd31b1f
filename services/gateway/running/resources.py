"""What attendants and runners share.

Knows nothing of how it is used. Invariant: opened before the first of them, closed after the last.
"""

from __future__ import annotations

from dataclasses import dataclass

from services.gateway.config import GatewaySettings
from services.gateway.inputs import Inputs
from services.gateway.outputs import Outputs
from services.gateway.store.bell import Bell
from services.gateway.store.jobs import Jobs
from services.gateway.workers.client import PlannerClient
from services.gateway.workers.pool import Pool


@dataclass(frozen=True)
class Resources:
    """One gateway's means."""

    settings: GatewaySettings
    jobs: Jobs
    bell: Bell
    outputs: Outputs
    inputs: Inputs
    planner: PlannerClient
    pool: Pool

    def explain(self) -> str:
        """Returns why jobs wait although nothing runs before them, as this gateway sees it; "" where they need not."""
        return self.pool.explain() or self.outputs.problem or self.planner.problem
