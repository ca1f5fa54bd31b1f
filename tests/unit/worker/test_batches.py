"""How a run's items are put into calls: together, halved, alone; and that none spoils another."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch

from darkroom.rpc.errors import BrokenOutputError, CancelledError, DarkroomError, InternalError, OutOfMemoryError
from darkroom.v1 import device_pb2, engine_pb2, generation_pb2, plan_pb2, worker_pb2
from services.worker.config import WorkerSettings
from services.worker.engine.assembly.stage import Assembly
from services.worker.engine.batches import make_pictures
from services.worker.engine.generation import most_at_once
from services.worker.engine.loop import Engine
from services.worker.engine.observing import Observer
from services.worker.engine.reporting import ItemReporter, LoadReporter
from tests.engines.worker_server import item

Call = Callable[[Sequence[str], Sequence[ItemReporter]], None]


class ScriptedEngine(Engine):
    """Does with each call what a test says, and remembers which items came together."""

    def __init__(self, most: int, script: Call = lambda names, reports: None) -> None:
        self.most = most
        self.script = script
        self.calls: list[list[str]] = []

    def open(self, settings: WorkerSettings) -> device_pb2.Device:
        raise NotImplementedError

    def read_device(self) -> device_pb2.Device:
        raise NotImplementedError

    def load(self, plan: plan_pb2.Plan, report: LoadReporter) -> worker_pb2.LoadedModel:
        raise NotImplementedError

    def unload(self) -> None:
        raise NotImplementedError

    def most_at_once(self) -> tuple[int, str]:
        return self.most, "that is all it can"

    def generate(self, items: Sequence[worker_pb2.RunItem], reports: Sequence[ItemReporter]) -> None:
        names = [each.job_id for each in items]
        self.calls.append(names)
        self.script(names, reports)
        for name, report in zip(names, reports, strict=True):
            if not report.is_over:
                report.finish(generation_pb2.Output(size_bytes=1), name.encode())

    def explain(self, failure: Exception) -> DarkroomError:
        return OutOfMemoryError("full") if isinstance(failure, MemoryError) else InternalError(str(failure))


def brought(name: str) -> worker_pb2.RunItem:
    """An item; a capital letter's brings a picture."""
    wanted = item(name)
    if name.isupper():
        wanted.request.images.add(data=b"a file")
    return wanted


def run(engine: ScriptedEngine, names: str, cancelled: str = "") -> dict[str, str]:
    """Runs one item a letter; returns how each ended: its batch (requested/resolved/engaged), or why it failed."""
    events: list[worker_pb2.RunEvent] = []
    wanted = set(cancelled)

    def report_of(job_id: str) -> ItemReporter:
        return ItemReporter(job_id, lambda event: events.append(event.run), lambda: job_id in wanted)

    make_pictures(engine, [brought(name) for name in names], report_of)
    ends: dict[str, str] = {}
    for event in events:
        if event.HasField("output"):
            assert event.job_id not in ends
            knobs = [knob for knob in event.output.engagements if knob.knob == "batch"]
            ends[event.job_id] = "".join(f"{knob.requested}/{knob.resolved}/{knob.engaged}" for knob in knobs)
        elif event.HasField("error"):
            assert event.job_id not in ends
            ends[event.job_id] = event.error.reason
    return ends


def test_items_go_together_as_far_as_the_pipeline_can() -> None:
    engine = ScriptedEngine(most=2)
    assert run(engine, "abcde") == dict.fromkeys("abcd", "5/2/2") | {"e": "5/2/1"}
    assert engine.calls == [["a", "b"], ["c", "d"], ["e"]]
    assert run(ScriptedEngine(most=4), "a") == {"a": ""}


def test_what_brings_a_picture_is_alone_in_its_call_and_in_its_place() -> None:
    engine = ScriptedEngine(most=4)
    ends = run(engine, "abCDe")
    assert engine.calls == [["a", "b"], ["C"], ["D"], ["e"]]
    assert ends == dict.fromkeys("ab", "5/4/2") | dict.fromkeys("CDe", "5/4/1")


@pytest.mark.parametrize("failure", [OutOfMemoryError("full"), MemoryError()])
def test_a_call_that_runs_out_of_memory_is_halved_and_each_half_again(failure: Exception) -> None:
    def script(names: Sequence[str], reports: Sequence[ItemReporter]) -> None:
        if len(names) > 2:
            raise failure

    engine = ScriptedEngine(8, script)
    assert run(engine, "abcdef") == dict.fromkeys("abde", "6/6/2") | dict.fromkeys("cf", "6/6/1")
    assert [len(call) for call in engine.calls] == [6, 3, 2, 1, 3, 2, 1]


def test_what_does_not_fit_alone_fails_alone() -> None:
    def script(names: Sequence[str], reports: Sequence[ItemReporter]) -> None:
        if "b" in names:
            raise OutOfMemoryError("full")

    assert run(ScriptedEngine(4, script), "abcd") == {"a": "4/4/1", "b": "OUT_OF_MEMORY", "c": "4/4/2", "d": "4/4/2"}


def test_after_any_other_failure_of_a_call_each_of_its_items_is_made_alone() -> None:
    def script(names: Sequence[str], reports: Sequence[ItemReporter]) -> None:
        if "b" in names:
            raise RuntimeError("a bug that one prompt meets")

    engine = ScriptedEngine(4, script)
    assert run(engine, "abc") == {"a": "3/3/1", "b": "INTERNAL", "c": "3/3/1"}
    assert engine.calls == [["a", "b", "c"], ["a"], ["b"], ["c"]]


def test_an_item_that_ended_is_not_made_again_when_its_call_fails() -> None:
    def script(names: Sequence[str], reports: Sequence[ItemReporter]) -> None:
        if len(names) > 1:
            reports[0].finish(generation_pb2.Output(size_bytes=1), b"x")
            raise OutOfMemoryError("full")

    engine = ScriptedEngine(4, script)
    assert set(run(engine, "abc")) == set("abc")
    assert engine.calls == [["a", "b", "c"], ["b"], ["c"]]


def test_what_was_cancelled_before_its_call_is_not_made() -> None:
    engine = ScriptedEngine(2)
    assert run(engine, "abcd", cancelled="bcd") == {"a": "4/2/1", **dict.fromkeys("bcd", "CANCELLED")}
    assert engine.calls == [["a"]]


def observed(*, cancelled: set[str] | None = None) -> tuple[Observer, dict[str, ItemReporter]]:
    """An observer of a call of two steps that makes a, b and c."""
    wanted = cancelled if cancelled is not None else set()
    events: list[engine_pb2.EngineEvent] = []
    reports = {name: ItemReporter(name, events.append, lambda name=name: name in wanted) for name in "abc"}  # type: ignore[misc]
    return Observer(2, list(reports.values())), reports


def test_a_cancel_ends_one_picture_and_the_call_goes_on_until_nobody_is_left() -> None:
    cancelled: set[str] = set()
    observer, reports = observed(cancelled=cancelled)
    latents = {"latents": torch.zeros(3, 4)}
    observer.step_ended(None, 0, None, latents)
    cancelled.add("b")
    observer.step_ended(None, 1, None, latents)
    assert [report.is_over for report in reports.values()] == [False, True, False]
    cancelled |= {"a", "c"}
    with pytest.raises(CancelledError):
        observer.step_ended(None, 1, None, latents)


def test_values_that_are_not_finite_fail_their_own_picture() -> None:
    observer, reports = observed()
    latents = torch.zeros(3, 4)
    latents[1, 2] = float("nan")
    observer.step_ended(None, 1, None, {"latents": latents})
    assert [report.is_over for report in reports.values()] == [False, True, False]
    pixels = torch.zeros(3, 3, 8, 8)
    pixels[0, 0, 0, 0] = float("inf")
    observer.decoded(torch.nn.Identity(), (), pixels)
    assert [report.is_over for report in reports.values()] == [True, True, False]
    # Decoded one by one, nobody can tell whose it is: then the call fails, and each is made alone.
    with pytest.raises(BrokenOutputError):
        observer.decoded(torch.nn.Identity(), (), pixels[:1])


def test_first_block_caching_would_let_neighbours_decide_so_each_picture_is_made_alone() -> None:
    plan = plan_pb2.Plan(call=plan_pb2.CallRecipe(max_batch=4))
    assembly = Assembly(plan, WorkerSettings(), torch.device("cpu"))
    assert most_at_once(assembly)[0] == 4
    assembly.cache_kind = plan_pb2.STEP_CACHE_KIND_FIRST_BLOCK
    assert most_at_once(assembly)[0] == 1
