"""One worker with its real engine and one folder of tiny pipelines, shared by all modules that ask for them: a start
costs seconds. Each test loads what it needs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.engines.painting import serve_painter
from tests.engines.worker_server import WorkerServer
from tests.tiny.flux import save_tiny_flux


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
