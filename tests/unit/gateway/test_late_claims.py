"""A gateway that is late and is killed, at any moment of storing, leaves no file that its job does not name."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from darkroom.rpc.errors import StaleTokenError
from darkroom.storage.local import LocalStore
from darkroom.v1 import generation_pb2, worker_pb2
from services.gateway.outputs import Outputs
from services.gateway.store.jobs import Jobs
from services.gateway.store.record import Claim
from services.gateway.store.vocabulary import Bounds
from tests.fakes.redis import open_jobs, serve_redis

pytestmark = pytest.mark.redis
DATA = b"a picture"
OUTPUT = generation_pb2.Output(size_bytes=len(DATA), sha256=hashlib.sha256(DATA).hexdigest())
Moment = Callable[[], Awaitable[None]]


class Overtaken(LocalStore):
    """A directory whose writer is held up in the middle of giving a file its name, while something else happens."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.before: Moment | None = None
        self.after: Moment | None = None
        self._loop = asyncio.get_running_loop()

    def take_file(self, key: str, path: Path) -> None:
        self._happens(self.before)
        super().take_file(key, path)
        self._happens(self.after)

    def _happens(self, moment: Moment | None) -> None:
        if moment is not None:
            asyncio.run_coroutine_threadsafe(moment(), self._loop).result(10)


class Late:
    """A claim of one gateway, and the other gateway, which takes the job over and tidies up before it ends it."""

    def __init__(self, jobs: Jobs, store: Overtaken, claim: Claim) -> None:
        self.store = store
        self.claim = claim
        self._jobs = jobs
        self._draft = Outputs(store).draft(claim.job.id, claim.token.counter)

    def write(self) -> None:
        self._draft.write(worker_pb2.OutputChunk(data=DATA))

    def close(self) -> None:
        self._draft.discard()

    async def commit(self) -> None:
        await self._draft.commit(OUTPUT, lambda: self._jobs.affirm(self.claim))

    async def is_overtaken(self) -> None:
        await self._jobs._client.zadd("darkroom:leases", {self.claim.job.id: 0})
        newer = await self._jobs.adopt(10)
        assert isinstance(newer, Claim)
        assert newer.token.counter > self.claim.token.counter
        await Outputs(LocalStore(Path(self.store.url))).delete_older(newer.job.id, newer.token.counter)

    @property
    def files(self) -> list[str]:
        return [file.key for file in self.store.list()]


@pytest.fixture
async def late(tmp_path: Path) -> AsyncIterator[Late]:
    async with serve_redis(tmp_path) as server, open_jobs(server.url) as (jobs, _):
        request = generation_pb2.GenerationRequest(model="tiny", prompt="x", seed=7)
        await jobs.submit(request, "tiny/0.0.0", "", "", Bounds(9, 9))
        claim = await jobs.claim("w", "", (), patience_s=10, lease_s=10)
        assert isinstance(claim, Claim)
        late = Late(jobs, Overtaken(tmp_path / "outputs"), claim)
        yield late
        late.close()


async def test_who_is_not_late_stores(late: Late) -> None:
    late.write()
    await late.commit()
    assert len(late.files) == 1


async def test_overtaken_before_the_first_piece_came_it_hears_so_before_it_stores(late: Late) -> None:
    await late.is_overtaken()
    late.write()
    with pytest.raises(StaleTokenError, match="claim 1 "):
        await late.commit()
    assert late.files == []


async def test_overtaken_with_its_draft_written_it_hears_so_before_it_stores(late: Late) -> None:
    late.write()
    await late.is_overtaken()
    with pytest.raises(StaleTokenError, match="claim 1 "):
        await late.commit()
    assert late.files == []


async def test_overtaken_after_its_last_look_it_finds_its_draft_gone(late: Late) -> None:
    late.store.before = late.is_overtaken
    late.write()
    with pytest.raises(StaleTokenError, match="took the draft"):
        await late.commit()
    assert late.files == []


async def test_overtaken_after_its_file_has_its_name_it_may_die_on_the_spot(late: Late) -> None:
    late.store.after = late.is_overtaken
    late.write()
    await late.commit()
    assert late.files == [], "whoever took the job over has deleted it, and needs nobody to tell"
