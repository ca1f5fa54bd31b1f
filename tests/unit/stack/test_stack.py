"""The stack starts, keeps and stops its services, and leaves nothing behind."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]
STACK = Path(__file__).with_name("stand_in_stack.py")
WAIT_S = 30.0


class RunningStack:
    """The stack as a process, and what can be seen of it from outside."""

    def __init__(self, data_dir: Path, num_workers: int, **environment: str) -> None:
        self.data_dir = data_dir
        self.order = data_dir.parent / "order"
        self.mark = f"DARKROOM_MARK_{os.getpid()}_{time.monotonic_ns()}"
        self.output = data_dir.parent / "output"
        variables = {
            **os.environ,
            **environment,
            "STAND_IN_ORDER": str(self.order),
            "PYTHONPATH": str(ROOT),
            self.mark: "1",
        }
        with open(self.output, "wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, str(STACK), str(data_dir), str(num_workers)],
                env=variables,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def record(self) -> dict[str, Any]:
        """stack.json, once it is there."""
        path = self.data_dir / "stack.json"
        wait_until(lambda: path.exists() or self.process.poll() is not None)
        assert path.exists(), self.output.read_text()
        return dict(json.loads(path.read_text()))

    def service_pid(self, name: str) -> int:
        """The newest process of a service, by its log."""
        lines = (self.data_dir / "logs" / f"{name}.log").read_text().splitlines()
        return int([json.loads(line)["pid"] for line in lines if line.startswith("{")][-1])

    def processes(self) -> list[int]:
        """Everything that runs with this stack's mark in its environment, itself included."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    if self.mark.encode() in (entry / "environ").read_bytes():
                        found.append(int(entry.name))
                except OSError:
                    continue
        return found


def wait_until(condition: Callable[[], bool], limit_s: float = WAIT_S) -> None:
    until = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < until, "waited for too long"
        time.sleep(0.02)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., RunningStack]]:
    started: list[RunningStack] = []

    def start_one(num_workers: int = 1, data_dir: Path = tmp_path / "data dir", **environment: str) -> RunningStack:
        started.append(RunningStack(data_dir, num_workers, **environment))
        return started[-1]

    yield start_one
    for stack in started:
        if stack.process.poll() is None:
            stack.process.kill()
        stack.process.wait()
        for pid in stack.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


Start = Callable[..., RunningStack]


def test_it_serves_tells_where_and_stops_in_order_on_a_signal(start: Start) -> None:
    stack = start(num_workers=2)
    record = stack.record()
    assert record["pid"] == stack.process.pid
    assert len(record["workers"]) == 2
    addresses = [record["planner"]["address"], *(worker["address"] for worker in record["workers"])]
    assert f"gateway gets {' '.join(addresses)}" in stack.output.read_text()

    stack.process.send_signal(signal.SIGTERM)
    assert stack.process.wait(WAIT_S) == 0
    assert stack.processes() == []
    stopped = stack.order.read_text().split()
    assert stopped[0] == "gateway"
    assert sorted(stopped[1:3]) == ["worker-0", "worker-1"]
    assert stopped[3] == "planner"
    assert not (stack.data_dir / "stack.json").exists()


def test_ctrl_c_while_it_starts_leaves_nothing(start: Start) -> None:
    stack = start(STAND_IN_MUTE="worker-0")
    wait_until(lambda: (stack.data_dir / "logs/worker-0.log").exists())
    stack.process.send_signal(signal.SIGINT)
    assert stack.process.wait(WAIT_S) == 0
    assert stack.processes() == []


def test_a_killed_service_is_started_again_on_its_address(start: Start) -> None:
    stack = start()
    before = stack.record()
    killed = stack.service_pid("worker-0")
    os.kill(killed, signal.SIGKILL)
    wait_until(lambda: stack.record()["workers"][0]["pid"] != before["workers"][0]["pid"])
    after = stack.record()
    assert after["workers"][0]["address"] == before["workers"][0]["address"]
    assert after["gateway"] == before["gateway"]
    output = stack.output.read_text()
    assert "worker-0 was ended by SIGKILL" in output
    wait_until(lambda: "worker-0 serves again" in stack.output.read_text())
    # What the killed process had started is gone too: stack, three leashes, three services, three children.
    assert len(stack.processes()) == 10
    stack.process.send_signal(signal.SIGINT)
    assert stack.process.wait(WAIT_S) == 0
    assert stack.processes() == []


def test_a_killed_stack_takes_everything_with_it(start: Start) -> None:
    stack = start()
    stack.record()
    stack.process.kill()
    stack.process.wait()
    wait_until(lambda: stack.processes() == [], 10.0)


def test_a_killed_leash_takes_its_service_with_it(start: Start) -> None:
    stack = start()
    record = stack.record()
    service = stack.service_pid("gateway")
    os.kill(record["gateway"]["pid"], signal.SIGKILL)
    wait_until(lambda: not Path(f"/proc/{service}").exists())


def test_a_stack_can_follow_a_killed_one_at_once(start: Start) -> None:
    first = start()
    first.record()
    first.process.kill()
    first.process.wait()
    (first.data_dir / "stack.json").unlink()
    second = start()
    assert second.record()["pid"] == second.process.pid
    assert first.processes() == []


def test_a_second_stack_in_the_same_folder_is_refused(start: Start) -> None:
    first = start()
    first.record()
    second = start()
    assert second.process.wait(WAIT_S) == 1
    assert f"(process {first.process.pid}) runs with" in second.output.read_text()
    assert first.process.poll() is None


def test_a_service_that_can_not_start_ends_the_stack_with_its_words(start: Start) -> None:
    stack = start(STAND_IN_FAIL="gateway")
    assert stack.process.wait(WAIT_S) == 1
    output = stack.output.read_text()
    assert "gateway exited with status 2" in output
    assert "DARKROOM_GATEWAY_LISTEN='x': not an address" in output
    assert "Traceback" not in output
    assert stack.processes() == []


def test_a_service_that_never_serves_ends_the_stack(start: Start) -> None:
    stack = start(STAND_IN_MUTE="planner", STAND_IN_START_S="1.5")
    assert stack.process.wait(WAIT_S) == 1
    assert "planner did not serve within 2 s" in stack.output.read_text()
    assert stack.processes() == []


def test_a_second_signal_kills_what_does_not_stop(start: Start) -> None:
    stack = start(STAND_IN_DEAF="1", STAND_IN_GRACE_S="60")
    stack.record()
    stack.process.send_signal(signal.SIGINT)
    time.sleep(0.5)
    assert stack.process.poll() is None
    stack.process.send_signal(signal.SIGINT)
    assert stack.process.wait(10.0) == 0
    assert stack.processes() == []
