"""Kill, hang, cancel and re-attach with the real engine on the bundled model: the rehearsal engine hides nothing.

Steps are counted where they are told: every step of a run comes once, and the worker's log says how often an engine
began a run at all.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import numpy as np
import pytest
import pytest_asyncio
from numpy.typing import NDArray
from PIL import Image

from darkroom.v1 import generation_service_pb2 as messages
from darkroom.v1 import job_pb2
from tests.chaos.cluster import Size
from tests.chaos.evidence import JobEvidence
from tests.chaos.scene import Scene, open_scene, said

pytestmark = pytest.mark.timeout(300)
SUCCEEDED, CANCELLED = job_pb2.JOB_STATE_SUCCEEDED, job_pb2.JOB_STATE_CANCELLED
PROMPT = "a red apple"
STEPS = 24
# Of a denoising step; a step of this model takes a fraction of a second on a busy processor.
IDLE_S = 12.0


@pytest_asyncio.fixture(scope="module")
async def scene(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Scene]:
    size = Size(num_gateways=2, num_workers=1, lease_s=2.0, idle_s=IDLE_S, grace_s=4.0, engine="services.worker.engine")
    async with open_scene(size, tmp_path_factory.mktemp("emoji")) as scene:
        await scene.finish(await scene.submit(PROMPT, steps=2))
        yield scene


def steps_told(found: JobEvidence) -> list[int]:
    """The steps that the last run of a job told."""
    told: list[int] = []
    for _, state, progress in found.events:
        if state == job_pb2.JOB_STATE_RUNNING:
            told = []
        elif progress is not None and progress.total == STEPS and progress.completed:
            told.append(progress.completed)
    return told


def num_runs(scene: Scene, job_id: str) -> int:
    """How often the worker's engine began the job."""
    return sum(entry["event"] == "run_started" for entry in said(scene.cluster.workers[0], job_id))


async def picture(scene: Scene, job_id: str) -> str:
    """SHA-256 of the file on disk."""
    return next(iter((await scene.evidence(job_id)).files.values()))


async def pixels_of(scene: Scene, job_id: str) -> NDArray[np.int_]:
    """The picture on disk."""
    name = next(iter((await scene.evidence(job_id)).files))
    return np.asarray(Image.open(next(scene.cluster.outputs.rglob(name))), dtype=int)


async def check_end(scene: Scene, job_id: str, *, attempts: int, runs: int) -> None:
    done = (await scene.finish(job_id))[0]
    assert (done.state, done.attempts) == (SUCCEEDED, attempts), done.error
    found = await scene.evidence(job_id)
    assert (found.terminal_writes, len(found.files), num_runs(scene, job_id)) == (1, 1, runs)
    assert steps_told(found) == list(range(1, STEPS + 1))


async def test_a_gateway_killed_in_the_middle_costs_no_step_and_the_picture_is_the_same(scene: Scene) -> None:
    calm = await scene.submit(PROMPT, steps=STEPS)
    await check_end(scene, calm, attempts=1, runs=1)
    job_id = await scene.submit(PROMPT, steps=STEPS)
    await scene.until_step(job_id, 2)
    driver = scene.cluster.gateways[scene.driver(job_id)]
    await driver.kill()
    await driver.start()
    await check_end(scene, job_id, attempts=1, runs=1)
    assert await picture(scene, job_id) == await picture(scene, calm)


async def test_a_killed_engine_costs_one_attempt_and_the_picture_is_the_same(scene: Scene) -> None:
    job_id = await scene.submit(PROMPT, steps=STEPS)
    await scene.until_step(job_id, 2)
    (await scene.engine(scene.cluster.workers[0])).kill()
    await check_end(scene, job_id, attempts=2, runs=2)
    assert (await scene.evidence(job_id)).num_deaths == 1
    again = await scene.submit(PROMPT, steps=STEPS)
    await scene.finish(again)
    assert await picture(scene, job_id) == await picture(scene, again)


async def test_an_engine_that_stands_still_is_killed_within_its_budget_and_the_job_goes_on(scene: Scene) -> None:
    job_id = await scene.submit(PROMPT, steps=STEPS)
    await scene.until_step(job_id, 2)
    (await scene.engine(scene.cluster.workers[0])).suspend()
    await check_end(scene, job_id, attempts=2, runs=2)
    reasons = [entry.get("reason") for gateway in scene.cluster.gateways for entry in said(gateway, job_id)]
    assert "ENGINE_HUNG" in reasons


async def test_a_cancelled_job_stops_at_a_step_and_the_next_one_is_as_if_it_had_never_been(scene: Scene) -> None:
    job_id = await scene.submit(PROMPT, steps=STEPS)
    await scene.until_step(job_id, 2)
    await scene.stubs[0].jobs.CancelJob(messages.CancelJobRequest(job_id=job_id), timeout=10)
    assert (await scene.finish(job_id))[0].state == CANCELLED
    assert len(steps_told(await scene.evidence(job_id))) < STEPS
    before, after = [await scene.submit(PROMPT, steps=STEPS) for _ in range(2)]
    await asyncio.gather(scene.finish(before), scene.finish(after))
    assert await picture(scene, before) == await picture(scene, after)


async def test_pictures_of_a_batch_are_as_alone_though_one_is_cancelled_and_the_gateway_dies(scene: Scene) -> None:
    prompts = [PROMPT, "a much longer prompt about a sleeping cat", "dog"]
    alone = [await scene.submit(prompt, steps=STEPS, seed=place) for place, prompt in enumerate(prompts)]
    await scene.finish(*alone)
    await scene.until_all_know_what_is_loaded()
    holder = await scene.submit(PROMPT, steps=STEPS - 1)
    await scene.until_step(holder, 1)
    batch = [
        await scene.submit(prompt, steps=STEPS, seed=place) for place, prompt in enumerate([*prompts, "cancelled"])
    ]
    await scene.until_step(batch[0], 2)
    await scene.stubs[0].jobs.CancelJob(messages.CancelJobRequest(job_id=batch[3]), timeout=10)
    driver = scene.cluster.gateways[scene.driver(batch[0])]
    await driver.kill()
    await driver.start()
    for job_id in batch[:3]:
        await check_end(scene, job_id, attempts=1, runs=1)
    assert (await scene.finish(batch[3]))[0].state == CANCELLED
    for alone_id, job_id in zip(alone, batch, strict=False):
        told = [knob.engaged for knob in (await scene.get(job_id)).output.engagements if knob.knob == "batch"]
        assert told == ["4"]
        pixels = [await pixels_of(scene, each) for each in (alone_id, job_id)]
        assert np.abs(pixels[0] - pixels[1]).max() <= 1, "of 255: float32 sums in another order"
