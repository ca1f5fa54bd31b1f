"""A gateway of each test's own; and one worker with its real engine and one folder of tiny pipelines, shared by all
modules that ask for them: a start costs seconds. Each test loads what it needs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.contract.house import House, open_house
from tests.engines.painting import serve_painter
from tests.engines.worker_server import WorkerServer
from tests.tiny.flux import save_tiny_flux


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    """A gateway with its own Redis, a fake worker and a fake planner."""
    async with open_house(tmp_path) as house:
        yield house


@pytest.fixture(scope="session")
def pipelines(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder that the painter reads; "tiny" in it is a FLUX.1."""
    folder = tmp_path_factory.mktemp("pipelines")
    save_tiny_flux(folder / "tiny")
    return folder


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def painter(pipelines: Path) -> AsyncIterator[WorkerServer]:
    """The shared worker."""
    async with serve_painter(pipelines) as server:
        yield server
