"""A fake gateway, and the command run in this process with what it printed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from darkroom.cli.application import run
from darkroom.client.fakes import FakeGateway


@dataclass(frozen=True)
class Ran:
    """What a command left."""

    exit_code: int
    out: str
    err: str


Command = Callable[..., Ran]


@pytest.fixture
def gateway() -> Iterator[FakeGateway]:
    with FakeGateway(step_s=0.002) as fake:
        yield fake


@pytest.fixture
def darkroom(
    gateway: FakeGateway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Command:
    """Runs `darkroom …` in an empty folder, with the fake gateway as its own."""
    monkeypatch.setenv("DARKROOM_ADDRESS", gateway.address)
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.chdir(tmp_path)

    def run_command(*arguments: str) -> Ran:
        exit_code = run(arguments)
        printed = capfd.readouterr()
        assert "Traceback" not in printed.out + printed.err
        return Ran(exit_code, printed.out, printed.err)

    return run_command
