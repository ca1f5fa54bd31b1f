"""What a run left behind: records and events in Redis, files on disk, steps in the engines' ledger.

Knows nothing of what is right. Invariant: it only reads.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path

import redis.asyncio as aioredis

from darkroom.v1 import generation_pb2, job_pb2
from services.gateway.store.connection import connect
from services.gateway.store.record import job_message
from tests.chaos.cluster import Cluster


@dataclass
class JobEvidence:
    """One job."""

    job: job_pb2.Job
    token: int
    terminal_writes: int
    num_deaths: int
    num_lost: int
    # (sequence, state or None, progress or None), as the store has them.
    events: list[tuple[int, int | None, generation_pb2.Progress | None]]
    # Names of its files, with their SHA-256.
    files: dict[str, str] = field(default_factory=dict)
    # The steps that engines computed, in order, by engine process.
    steps: dict[int, list[int]] = field(default_factory=dict)

    @property
    def num_claims(self) -> int:
        """How often somebody was given the right to start it."""
        return sum(state == job_pb2.JOB_STATE_RUNNING for _, state, _ in self.events)

    @property
    def num_starts(self) -> int:
        """How often an engine began it."""
        return sum(steps.count(1) for steps in self.steps.values())


@dataclass
class Evidence:
    """All of it."""

    jobs: dict[str, JobEvidence]
    # What nobody should find once all jobs have ended.
    remains: list[str]


async def gather(cluster: Cluster) -> Evidence:
    """Reads everything. Call when all jobs have ended."""
    client = connect(cluster.redis_url)
    try:
        jobs = await _read_jobs(client)
        remains = [f"{key.decode()} is left in Redis" for key in await client.keys("darkroom:worker:*")]
        for name in ("leases", "queue"):
            if await client.exists(f"darkroom:{name}"):
                remains.append(f"darkroom:{name} is not empty")
    finally:
        await client.aclose()
    for job_id, pid, step in _read_ledger(cluster.ledger):
        if job_id in jobs:
            jobs[job_id].steps.setdefault(pid, []).append(step)
        else:
            remains.append(f"an engine worked on {job_id}, which the store does not know")
    for path in sorted(cluster.outputs.glob("[0-9a-f][0-9a-f]/*")):
        owner = jobs.get(path.name.partition("-")[0])
        if owner is None:
            remains.append(f"file {path.name} belongs to no job")
        else:
            owner.files[path.name] = hashlib.sha256(path.read_bytes()).hexdigest()
    return Evidence(jobs, remains)


async def _read_jobs(client: aioredis.Redis) -> dict[str, JobEvidence]:
    found = {}
    for key in await client.keys("darkroom:job:*"):
        job_id = key.decode().rpartition(":")[2]
        fields = await client.hgetall(key)
        events = await client.xrange(f"darkroom:events:{job_id}")
        found[job_id] = JobEvidence(
            job_message(job_id, fields),
            int(fields.get(b"token", 0)),
            int(fields.get(b"terminal_writes", 0)),
            int(fields.get(b"deaths", 0)),
            int(fields.get(b"lost", 0)),
            [_event(entry_id, told) for entry_id, told in events],
        )
    return found


def _event(entry_id: bytes, told: dict[bytes, bytes]) -> tuple[int, int | None, generation_pb2.Progress | None]:
    sequence = int(entry_id.partition(b"-")[0])
    if b"progress" in told:
        return sequence, None, generation_pb2.Progress.FromString(told[b"progress"])
    return sequence, int(told[b"state"]), None


def _read_ledger(path: Path) -> list[tuple[str, int, int]]:
    found = []
    for line in path.read_text().splitlines() if path.exists() else []:
        words = line.split()
        if len(words) == 4 and words[1] == "step":
            found.append((words[2], int(words[0]), int(words[3])))
    return found
