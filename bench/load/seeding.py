"""Ended jobs by the hundred thousand, made by the gateway's own scripts: submit, claim, two steps' progress, finish.

A pipeline for each script and `BATCH` jobs, each job on an imaginary worker of its own. Knows nothing of what they are
for. Invariant: the scripts were called as the gateway calls them, and every job ended in success.
"""

from __future__ import annotations

import secrets
import uuid
from collections.abc import Iterable, Sequence
from typing import Any

import redis.asyncio as aioredis

from darkroom.v1 import generation_pb2, job_pb2
from services.gateway.store.connection import Durability
from services.gateway.store.line import Argument
from services.gateway.store.scripts import Scripts

BATCH = 500
MOST = 10_000_000
KIND, SHAPE = "emoji/0.0.0", "128x128 4 2.0"
STEPS, STEP_OF_PROGRESS = 4, (2, 4)


class Seeder:
    """Makes ended jobs in one store that nobody else uses."""

    def __init__(self, client: aioredis.Redis) -> None:
        self._client = client
        self._scripts = Scripts(client, Durability.UNKNOWN)

    async def seed(self, count: int) -> None:
        """Makes that many."""
        for name in ("submit", "claim", "append", "finish"):
            await self._client.script_load(self._scripts.text(name))
        for start in range(0, count, BATCH):
            await self._make(range(start, min(start + BATCH, count)))

    async def _make(self, numbers: Sequence[int]) -> None:
        await self._all("submit", (_submission(number) for number in numbers))
        claimed = await self._all(
            "claim", ((f"seed-{number}", "", 10_000, 60_000, "seed", b"", "") for number in numbers)
        )
        guards = [(answer[4], answer[1]) for answer in claimed]
        for place, step in enumerate(STEP_OF_PROGRESS, start=1):
            await self._all("append", ((*guard, place, _progress(step)) for guard in guards))
        state = int(job_pb2.JOB_STATE_SUCCEEDED)
        outputs = (_output(number) for number in numbers)
        ends = ((*guard, state, output, b"", 20_000) for guard, output in zip(guards, outputs, strict=True))
        if any(answer != [b"ok"] for answer in await self._all("finish", ends)):
            raise RuntimeError("a seeded job did not end in success")

    async def _all(self, script: str, calls: Iterable[Sequence[Argument]]) -> list[Any]:
        async with self._client.pipeline(transaction=False) as pipe:
            for arguments in calls:
                pipe.execute_command(*self._scripts.command(script, *arguments))
            return list(await pipe.execute())


def _submission(number: int) -> Sequence[Argument]:
    request = generation_pb2.GenerationRequest(
        model="emoji", prompt="a red apple, 3d style", width=128, height=128, steps=STEPS, guidance=2, seed=number
    )
    request.format = generation_pb2.OUTPUT_FORMAT_PNG
    data = request.SerializeToString(deterministic=True)
    # A request id, as our client always sends one, and its digest.
    names = (str(uuid.uuid4()), secrets.token_hex(32))
    return (secrets.token_hex(6), data, KIND, *names, b"", 0, 1, "default", MOST, MOST, SHAPE)


def _progress(step: int) -> bytes:
    phase = generation_pb2.PHASE_DENOISING
    progress = generation_pb2.Progress(phase=phase, completed=step, total=STEPS, fraction=step / STEPS)
    progress.eta.FromMilliseconds(100)
    return progress.SerializeToString()


def _output(seed: int) -> bytes:
    output = generation_pb2.Output(
        content_type="image/png", size_bytes=20_000, sha256=secrets.token_hex(32), width=128, height=128, seed=seed
    )
    output.engine_time.FromMilliseconds(400)
    output.engagements.add(knob="guidance", requested="2", resolved="true_cfg_scale=2", engaged="2 (classifier-free)")
    return output.SerializeToString()
