"""One worker as the gateway knows it: its client, what it said last, and for which jobs its loaded plan is good.

Knows nothing of Redis. Invariant: `is_free` is a hint from the last answer; the claim in Redis and the worker's own
fence decide.
"""

from __future__ import annotations

import asyncio
import contextlib
import time

from darkroom.rpc.errors import DarkroomError
from darkroom.v1 import device_pb2, plan_pb2, worker_pb2
from services.gateway.workers.client import WorkerClient

# Between two looks at a worker that is well, and at one that is away or busy with something else.
LOOK_S = 2.0
QUICK_LOOK_S = 0.25
FREE = (worker_pb2.WORKER_STATE_EMPTY, worker_pb2.WORKER_STATE_READY)
ENDING = (worker_pb2.WORKER_STATE_DRAINING, worker_pb2.WORKER_STATE_FAILED)
MAX_PENALTY_S = 5.0
# Before a planner that did not answer is asked once more how many jobs there is room for.
ASK_AGAIN_S = 5.0


class Seat:
    """One worker's place."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.client = WorkerClient(address)
        self.status: worker_pb2.WorkerStatus | None = None
        # Why it did not answer; "" where it did.
        self.problem = "not asked yet"
        # The kind of the last job that ran here: affinity.
        self.kind = ""
        # Jobs that this gateway drives here now.
        self.num_runs = 0
        # Most pixels that the loaded plan is good for, by kind and by the pictures that a request brings.
        self._covered: dict[str, dict[int, int]] = {}
        self._loaded_mark = b""
        self._failures = 0
        # The claim whose jobs ended well here last, and those jobs.
        self._done_claim, self._done = 0, set[str]()
        self._failed_claim = 0
        # How many pictures of a size the loaded plan has room for at once, by kind and size: as the planner says.
        self._rooms: dict[str, dict[str, int]] = {}
        # When the planner could not be asked, and may be again.
        self._asks_again_at = 0.0
        self._looked = asyncio.Event()
        self._nudge = asyncio.Event()

    @property
    def worker_id(self) -> str:
        """Its name; "" before it ever answered."""
        return self.status.worker_id if self.status is not None else ""

    @property
    def is_reachable(self) -> bool:
        """True if it answered when it was last asked."""
        return not self.problem

    @property
    def is_serving(self) -> bool:
        """True if it takes work, now or when it is done with what it has."""
        return self.is_reachable and self.status is not None and self.status.state not in ENDING

    @property
    def is_free(self) -> bool:
        """True if it could take a job. An answer from when the last job was ending still counts as free."""
        if not self.is_reachable or self.status is None:
            return False
        is_ending = self.status.state == worker_pb2.WORKER_STATE_GENERATING and {*self.status.job_ids} <= self._done
        return self.status.state in FREE or (is_ending and bool(self._done))

    @property
    def device(self) -> device_pb2.Device:
        """Its device as last told; empty before it ever answered."""
        return self.status.device if self.status is not None else device_pb2.Device()

    async def look(self) -> None:
        """Asks for its status, now."""
        try:
            self.remember(await self.client.status())
            self.problem = ""
        except DarkroomError as error:
            self.problem = error.message
        self._looked.set()
        self._looked = asyncio.Event()

    async def keep_looking(self) -> None:
        """Asks again and again, until cancelled."""
        while True:
            await self.look()
            self._nudge.clear()
            with contextlib.suppress(TimeoutError):
                # Not wait_for: under Python 3.11 it can swallow a cancellation that comes together with its result.
                async with asyncio.timeout(LOOK_S if self.is_free or self.num_runs else QUICK_LOOK_S):
                    await self._nudge.wait()

    async def until_free(self) -> None:
        """Returns when it could take a job, and its last failures lie some time back."""
        if self._failures:
            await asyncio.sleep(min(MAX_PENALTY_S, 0.1 * 2**self._failures))
            await self.look()
        if not self.is_free:
            self._nudge.set()
        while not self.is_free:
            await self._looked.wait()

    def went_well(self, job_id: str, claim: int) -> None:
        """A job was done here: once all of its claim are, it is free again, whatever it said while they ran."""
        self._failures = 0
        if claim != self._done_claim:
            self._done_claim, self._done = claim, set()
        self._done.add(job_id)
        status = self.status
        is_busy = status is not None and status.state == worker_pb2.WORKER_STATE_GENERATING
        if status is not None and is_busy and {*status.job_ids} <= self._done:
            status.state = worker_pb2.WORKER_STATE_READY
            del status.job_ids[:]

    def went_wrong(self, claim: int) -> None:
        """Jobs of a claim could not be done here for a reason of the worker's: it rests, longer each time."""
        if claim != self._failed_claim:
            self._failed_claim = claim
            self._failures = min(self._failures + 1, 8)

    def lost(self, problem: str) -> None:
        """It stopped answering."""
        self.problem = problem or "does not answer"
        self._nudge.set()

    def remember(self, status: worker_pb2.WorkerStatus) -> None:
        """Takes over what it says of itself; another loaded plan ends what was known of the old one."""
        self.status = status
        mark = status.loaded.plan.SerializeToString(deterministic=True) if status.HasField("loaded") else b""
        if mark != self._loaded_mark:
            self._loaded_mark = mark
            self._covered, self._rooms = {}, {}
            self.kind = f"{status.loaded.plan.model}/0.0.0" if mark else ""

    def remember_load(self, loaded: worker_pb2.LoadedModel, kind: str, workload: plan_pb2.Workload) -> None:
        """A load of this gateway's ended well."""
        status = worker_pb2.WorkerStatus()
        if self.status is not None:
            status.CopyFrom(self.status)
        status.loaded.CopyFrom(loaded)
        status.state = worker_pb2.WORKER_STATE_READY
        self.remember(status)
        self.remember_cover(kind, workload)

    def remember_cover(self, kind: str, workload: plan_pb2.Workload) -> None:
        """The loaded plan is what the planner says for `kind` up to this size and this many pictures brought."""
        known, count = self._covered.setdefault(kind, {}), workload.reference_images
        known[count] = max(_pixels(workload), known.get(count, 0))
        self.kind = kind

    def knows(self, kind: str) -> bool:
        """True if the loaded plan was made for such jobs, of whatever size."""
        return kind in self._covered

    def covers(self, kind: str, workload: plan_pb2.Workload) -> bool:
        """True if nothing need be planned for such a job."""
        known, pixels = self._covered.get(kind, {}), _pixels(workload)
        return any(count >= workload.reference_images and most >= pixels for count, most in known.items())

    def forget_loaded(self) -> None:
        """What is loaded is not what was thought."""
        self._covered, self._rooms = {}, {}

    @property
    def rooms(self) -> dict[str, int]:
        """By size, as 512x512: how many jobs of the last kind the loaded plan has room for at once, where known."""
        return self._rooms.get(self.kind, {})

    def room_for(self, kind: str, size: str) -> int | None:
        """How many jobs of a kind and size the loaded plan has room for at once; None where nobody asked yet."""
        return self._rooms.get(kind, {}).get(size)

    def room_is_unknown(self) -> None:
        """The planner could not be asked: for a while jobs run alone."""
        self._asks_again_at = time.monotonic() + ASK_AGAIN_S

    @property
    def may_ask_room(self) -> bool:
        """True unless the planner could not be asked a moment ago."""
        return time.monotonic() >= self._asks_again_at

    def remember_room(self, kind: str, size: str, room: int) -> None:
        """The planner says how many of a size the loaded plan has room for."""
        self._rooms.setdefault(kind, {})[size] = room

    @property
    def loaded_plan(self) -> plan_pb2.Plan | None:
        """The plan in force."""
        if self.status is None or not self.status.HasField("loaded"):
            return None
        return self.status.loaded.plan


def _pixels(workload: plan_pb2.Workload) -> int:
    return workload.width * workload.height * max(1, workload.batch_size) * max(1, workload.num_frames)
