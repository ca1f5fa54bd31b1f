"""The lease of one running job: renewed by a timer while there is progress, given up otherwise.

Knows nothing of what makes progress. Invariant: `lost` fires before the lease can have run out at the server, counting
from when its last renewal was sent.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from darkroom.rpc.errors import StaleTokenError, StoreUnavailableError
from darkroom.rpc.logs import log
from darkroom.v1 import generation_pb2, plan_pb2
from services.gateway.store.jobs import Jobs
from services.gateway.store.record import Claim
from services.gateway.store.vocabulary import Wish

RETRY_S = 0.25
# Where a plan names no budget, and before anything is known.
DEFAULT_BUDGET_S = 300.0
BUDGET_OF_PHASE = {
    generation_pb2.PHASE_DOWNLOADING: "download",
    generation_pb2.PHASE_ASSEMBLING: "assemble",
    generation_pb2.PHASE_COMPILING: "compile",
    generation_pb2.PHASE_ENCODING: "encode",
    generation_pb2.PHASE_DENOISING: "denoise",
    generation_pb2.PHASE_DECODING: "decode",
    generation_pb2.PHASE_SAVING: "decode",
}


class Lease:
    """Keeps a claim alive.

    Args:
        jobs: where the lease is.
        claim: whose.
        lease_s: its length.
        slack_s: beyond a phase's idle budget, for the worker to end its engine by itself.
        lost: called once when the claim is no longer ours.
        hung: called once when there was no progress for too long; the lease is not renewed after that.
        stop: called whenever the store says that the job should stop, with why.
    """

    def __init__(
        self,
        jobs: Jobs,
        claim: Claim,
        lease_s: float,
        slack_s: float,
        *,
        lost: Callable[[], None],
        hung: Callable[[], None],
        stop: Callable[[Wish], None],
    ) -> None:
        self._jobs = jobs
        self._claim = claim
        self._lease_s = lease_s
        self._slack_s = slack_s
        self._lost = lost
        self._hung = hung
        self._stop = stop
        self._budget_s = DEFAULT_BUDGET_S
        self._progressed_at = time.monotonic()
        self.expires_at = time.monotonic() + lease_s

    @property
    def has_run_out(self) -> bool:
        """True when the server may have given the job to somebody else."""
        return time.monotonic() >= self.expires_at

    def progressed(self, phase: int, budgets: plan_pb2.IdleBudgets | None, at_once: int = 1) -> None:
        """Something new happened in `phase`; jobs that run `at_once` may take as many times as long."""
        self._progressed_at = time.monotonic()
        self._budget_s = _budget_s(phase, budgets) * at_once

    async def keep(self) -> None:
        """Renews until cancelled, or until the claim is lost or its work hangs."""
        pause_s = self._lease_s / 3
        while True:
            await asyncio.sleep(pause_s)
            idle_s = time.monotonic() - self._progressed_at
            if idle_s > self._budget_s + self._slack_s:
                log.error("job_hung", idle_s=round(idle_s, 1), budget_s=self._budget_s)
                self._hung()
                return
            asked_at = time.monotonic()
            try:
                if wish := await self._jobs.renew(self._claim, self._lease_s):
                    self._stop(wish)
                self.expires_at = asked_at + self._lease_s
                pause_s = self._lease_s / 3
            except StoreUnavailableError:
                pause_s = min(RETRY_S, self._lease_s / 6)
                if self.has_run_out:
                    self._lost()
                    return
            except StaleTokenError:
                self._lost()
                return


def _budget_s(phase: int, budgets: plan_pb2.IdleBudgets | None) -> float:
    name = BUDGET_OF_PHASE.get(phase)  # type: ignore[call-overload]
    if name is None or budgets is None or not budgets.HasField(name):
        return DEFAULT_BUDGET_S
    seconds = float(getattr(budgets, name).ToNanoseconds() / 1e9)
    return seconds if seconds > 0 else DEFAULT_BUDGET_S
