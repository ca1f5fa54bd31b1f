"""Progress of a fetch, as the Hub's own code moves it."""

from __future__ import annotations

import threading
import time

import pytest

from darkroom.rpc.errors import CancelledError
from darkroom.v1 import checkpoint_pb2, engine_pb2, generation_pb2
from services.worker.engine.reporting import LoadReporter

fetching = pytest.importorskip("services.worker.engine.assembly.fetching")


def test_bytes_are_told_once_and_never_go_back_whichever_bar_moves() -> None:
    events: list[engine_pb2.EngineEvent] = []
    source = checkpoint_pb2.CheckpointSource(repo_id="owner/model", fetch_bytes=100)
    progress = fetching.FetchProgress(source, LoadReporter(events.append, lambda: False))
    network = progress.bar_class(desc="Downloading bytes", total=0, initial=0, unit="B", unit_scale=True)
    disk = progress.bar_class(desc="Reconstructing", total=0, initial=0, unit="B", name="some.name")
    files = progress.bar_class(range(3), total=3)
    network.total = disk.total = 80
    network.update(30)
    disk.update(10)
    disk.update(25)
    assert list(files) == [0, 1, 2]
    told = [event.load.progress for event in events]
    assert [item.completed for item in told] == [30, 35]
    assert {item.total for item in told} == {100}
    assert {item.phase for item in told} == {generation_pb2.PHASE_DOWNLOADING}


def test_bytes_do_not_go_back_where_two_threads_move_two_bars() -> None:
    events: list[engine_pb2.EngineEvent] = []

    def tell_slowly(event: engine_pb2.EngineEvent) -> None:
        if event.load.progress.completed == 30:
            time.sleep(0.1)
        events.append(event)

    progress = fetching.FetchProgress(checkpoint_pb2.CheckpointSource(), LoadReporter(tell_slowly, lambda: False))
    network, disk = [progress.bar_class(total=80, unit="B") for _ in range(2)]
    first = threading.Thread(target=network.update, args=(30,))
    first.start()
    time.sleep(0.02)
    disk.update(35)
    first.join()
    assert [event.load.progress.completed for event in events] == [30, 35]


def test_a_cancelled_load_ends_its_fetch_at_the_next_bytes() -> None:
    progress = fetching.FetchProgress(checkpoint_pb2.CheckpointSource(), LoadReporter(lambda event: None, lambda: True))
    bar = progress.bar_class(total=10, unit="B")
    with pytest.raises(CancelledError):
        bar.update(1)
