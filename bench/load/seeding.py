"""Ended jobs by the hundred thousand, made by the gateway's own scripts: submit, claim, two steps' progress, finish.

One script holds the text of all of them, each as a function of its arguments, and takes `BATCH` jobs through them at a
time: five million calls would take most of an hour, and are not what is measured. Each job has an imaginary worker of
its own. Knows nothing of what they are for. Invariant: the scripts are as they are, and every job ended in success.
"""

from __future__ import annotations

import secrets
import uuid

import redis.asyncio as aioredis

from darkroom.v1 import generation_pb2
from services.gateway.store.connection import Durability
from services.gateway.store.scripts import Scripts

BATCH = 500
STEPS, STEPS_TOLD = 4, (2, 4)
ROUTINES = ("submit", "claim", "append", "finish")
# ARGV: progress, progress, then of each job: suffix of its id, request, request id, digest, output.
THROUGH = """
for place = 3, #ARGV, 5 do
  local suffix, request, request_id, digest, output = unpack(ARGV, place, place + 4)
  local most = '10000000'
  routines.submit({suffix, request, 'emoji/0.0.0', request_id, digest, '', '0', '1', 'default', most, most,
    '128x128 4 2.0'})
  local claimed = routines.claim({'seed-' .. suffix, '', '10000', '60000', 'seed', '', ''})
  local id, token = claimed[5], claimed[2]
  routines.append({id, token, '1', ARGV[1]})
  routines.append({id, token, '2', ARGV[2]})
  local ended = routines.finish({id, token, '3', output, '', '20000'})
  if ended[1] ~= 'ok' then return redis.error_reply('a seeded job is ' .. ended[1]) end
end
return 'ok'
"""


class Seeder:
    """Makes ended jobs in one store that nobody else uses."""

    def __init__(self, client: aioredis.Redis) -> None:
        self._client = client
        scripts = Scripts(client, Durability.UNKNOWN)
        routines = [f"routines.{name} = function(ARGV)\n{scripts.text(name)}\nend" for name in ROUTINES]
        self._text = "\n".join(["local routines = {}", *routines, THROUGH])

    async def seed(self, count: int) -> None:
        """Makes that many."""
        digest = await self._client.script_load(self._text)
        told = [_progress(step) for step in STEPS_TOLD]
        for start in range(0, count, BATCH):
            numbers = range(start, min(start + BATCH, count))
            parts = [part for number in numbers for part in _job(number)]
            await self._client.evalsha(digest, 0, *told, *parts)


def _job(number: int) -> list[str | bytes]:
    """As one is asked for by our client, which always sends a request id, and as it ends."""
    request = generation_pb2.GenerationRequest(
        model="emoji", prompt="a red apple, 3d style", width=128, height=128, steps=STEPS, guidance=2, seed=number
    )
    request.format = generation_pb2.OUTPUT_FORMAT_PNG
    data = request.SerializeToString(deterministic=True)
    return [secrets.token_hex(6), data, str(uuid.uuid4()), secrets.token_hex(32), _output(number)]


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
