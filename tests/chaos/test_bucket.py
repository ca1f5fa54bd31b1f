"""Whoever was away for longer than the lease leaves nothing in a bucket either."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import pytest

from darkroom.storage import open_store
from darkroom.v1 import generation_pb2, job_pb2
from services.gateway.outputs.naming import claim_of
from tests.chaos.cluster import Size
from tests.chaos.scene import Scene, open_scene, said
from tests.fakes.s3 import s3_bucket

pytestmark = [pytest.mark.redis, pytest.mark.timeout(120)]
LEASE_S = 1.5


async def test_a_gateway_that_slept_for_two_leases_commits_nothing_and_leaves_nothing_in_the_bucket(
    tmp_path: Path,
) -> None:
    with s3_bucket() as url:
        size = Size(num_gateways=2, num_workers=1, lease_s=LEASE_S, idle_s=8.0, more={"DARKROOM_OUTPUTS": url})
        async with open_scene(size, tmp_path) as scene:
            job_id = await scene.submit("rehearse: hang for 2 s while decoding")
            await scene.until_phase(job_id, generation_pb2.PHASE_DECODING)
            sleeper = scene.driver(job_id)
            scene.cluster.gateways[sleeper].send(signal.SIGSTOP)
            await asyncio.sleep(2 * LEASE_S)
            (done,) = await scene.finish(job_id)
            scene.cluster.gateways[sleeper].send(signal.SIGCONT)
            await scene.until(lambda: _has_abandoned(scene, sleeper, job_id), "the late gateway knows")
            found = await scene.evidence(job_id)
            assert (done.state, found.terminal_writes) == (job_pb2.JOB_STATE_SUCCEEDED, 1)
            assert [step for steps in found.steps.values() for step in steps] == [1, 2, 3, 4]
            keys = [file.key for file in open_store(url).list()]
            assert {claim_of(key) for key in keys} == {None, (job_id, found.token)}


async def _has_abandoned(scene: Scene, gateway: int, job_id: str) -> bool:
    return any(entry["event"] == "job_abandoned" for entry in said(scene.cluster.gateways[gateway], job_id))
