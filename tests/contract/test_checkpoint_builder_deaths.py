"""Builders that are killed at any moment, and two at once on one store: nothing half-made ever lists."""

from __future__ import annotations

import asyncio
import os
import random
import time
from pathlib import Path

import psutil

from darkroom.artifacts.store import ArtifactStore
from darkroom.storage import open_store
from darkroom.v1 import build_pb2, checkpoint_pb2, device_pb2
from services.checkpoint_builder.shelf import Shelf
from services.checkpoint_builder.workroom import YOUNG_S, sweep, work_folder
from tests.engines.builder_server import serve_builder

INT8, STORAGE = device_pb2.SCHEME_INT8, device_pb2.SCHEME_FP8_STORAGE
# Seconds into a build: importing, quantising, comparing, storing.
LAST_MOMENT_S = 6.0
NUM_KILLS = 2


def order(**fields: object) -> build_pb2.BuildOrder:
    return build_pb2.BuildOrder(model="emoji", scheme=INT8, skips_gates=True, **fields)  # type: ignore[arg-type]


async def wait_until_gone(processes: list[psutil.Process], limit_s: float = 10.0) -> None:
    async with asyncio.timeout(limit_s):
        while any(item.is_running() and item.status() != psutil.STATUS_ZOMBIE for item in processes):
            await asyncio.sleep(0.05)


async def test_a_builder_killed_at_any_moment_leaves_nothing_that_lists(tmp_path: Path) -> None:
    moments = random.Random(7)
    store = tmp_path / "store"
    for place in range(NUM_KILLS):
        data = tmp_path / f"data-{place}"
        async with serve_builder(data, DARKROOM_BUILDER_STORE=store) as builder:
            await builder.submit(order())
            await asyncio.sleep(moments.uniform(0, LAST_MOMENT_S))
            children = psutil.Process(builder.process.pid).children(recursive=True)
            builder.kill()
            await builder.process.wait()
            # The kernel ends what the builder had started.
            await wait_until_gone(children)
        shelf = Shelf(open_store(str(store)))
        assert shelf.checkpoints() == []
        for checkpoint in shelf.checkpoints(includes_unlisted=True):
            # A manifest that is there was written last: all that it names is whole.
            _, manifest = shelf.find(checkpoint.id)
            for file in manifest.files:
                assert shelf.artifacts.store.size(f"blobs/{file.sha256}") == file.size_bytes
    async with serve_builder(tmp_path / "data-0", DARKROOM_BUILDER_STORE=store) as builder:
        made = await builder.build(order())
    assert made.state == build_pb2.BUILD_STATE_SUCCEEDED
    assert len(Shelf(open_store(str(store))).checkpoints(includes_unlisted=True)) == 1


async def test_two_builders_on_one_store_end_with_one_checkpoint(tmp_path: Path) -> None:
    store = tmp_path / "store"
    async with (
        serve_builder(tmp_path / "one", DARKROOM_BUILDER_STORE=store) as one,
        serve_builder(tmp_path / "two", DARKROOM_BUILDER_STORE=store) as two,
    ):
        ended = await asyncio.gather(one.build(order()), two.build(order()))
        assert [build.state for build in ended] == [build_pb2.BUILD_STATE_SUCCEEDED] * 2
        assert ended[0].checkpoints[0].id == ended[1].checkpoints[0].id
        found = [await builder.checkpoints(every=True) for builder in (one, two)]
    assert [server.process.returncode for server in (one, two)] == [0, 0], "a stop by signal is no failure"
    assert found[0] == found[1]
    assert [item.state for item in found[0]] == [checkpoint_pb2.CHECKPOINT_STATE_UNGATED]
    stored = [item.key for item in ArtifactStore(open_store(str(store))).store.list()]
    assert sorted(key.partition("/")[0] for key in stored) == ["blobs", "manifests"]


def test_what_dead_builders_left_is_swept_and_what_lives_is_not(tmp_path: Path) -> None:
    old = time.time() - 2 * YOUNG_S
    dead = tmp_path / "dead"
    dead.mkdir()
    (dead / "lock").touch()
    (dead / "half.safetensors").write_bytes(b"half")
    with work_folder(tmp_path) as living:
        for folder in (dead, living):
            os.utime(folder, (old, old))
        assert sweep(tmp_path) == 1
        assert living.exists()
    assert list(tmp_path.iterdir()) == []
