"""Files: whole or not there, never under a name that a caller chose; in a directory and in a bucket alike."""

from __future__ import annotations

import hashlib
import os
import secrets
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from darkroom.rpc.errors import (
    BrokenOutputError,
    DataLossError,
    DiskFullError,
    OffsetError,
    OutputsUnavailableError,
    StaleTokenError,
    UnknownJobError,
)
from darkroom.storage import Store, open_store
from darkroom.v1 import generation_pb2, worker_pb2
from services.gateway.outputs import ORPHAN_AGE_S, Outputs
from services.gateway.outputs.naming import name_of
from services.gateway.outputs.outputs import BLOCK_BYTES, CHUNK_BYTES
from tests.fakes.s3 import s3_bucket

JOB = "0123456789ab" * 2


def output_of(data: bytes) -> generation_pb2.Output:
    return generation_pb2.Output(size_bytes=len(data), sha256=hashlib.sha256(data).hexdigest())


def chunk(offset: int, data: bytes) -> worker_pb2.OutputChunk:
    return worker_pb2.OutputChunk(offset=offset, data=data)


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    with s3_bucket() as url:
        yield url


@pytest.fixture(params=["directory", "bucket"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    if request.param == "directory":
        return open_store(tmp_path / "outputs")
    return open_store(f"{request.getfixturevalue('bucket')}/{secrets.token_hex(4)}")


@pytest.fixture
def outputs(store: Store) -> Outputs:
    return Outputs(store)


async def is_newest() -> None:
    """The claim's: nobody else has the job here."""


async def write(outputs: Outputs, data: bytes, counter: int = 1) -> None:
    draft = outputs.draft(JOB, counter)
    try:
        draft.write(chunk(0, data))
        await draft.commit(output_of(data), is_newest)
    finally:
        draft.discard()


async def read(outputs: Outputs, data: bytes, offset: int, counter: int = 1) -> bytes:
    return b"".join([piece.data async for piece in outputs.read(JOB, counter, output_of(data), offset)])


def keys(store: Store) -> list[str]:
    return sorted(file.key for file in store.list())


async def test_a_file_is_not_there_before_it_is_whole(outputs: Outputs, store: Store) -> None:
    draft = outputs.draft(JOB, 1)
    draft.write(chunk(0, b"abc"))
    assert keys(store) == []
    draft.write(chunk(3, b"def"))
    await draft.commit(output_of(b"abcdef"), is_newest)
    draft.discard()
    assert await read(outputs, b"abcdef", 0) == b"abcdef"
    assert not list(store.drafts.glob(f"{JOB}*"))


async def test_replayed_pieces_are_skipped_and_missing_ones_are_noticed(outputs: Outputs, store: Store) -> None:
    draft = outputs.draft(JOB, 1)
    draft.write(chunk(0, b"abc"))
    draft.write(chunk(0, b"abc"))
    with pytest.raises(BrokenOutputError):
        draft.write(chunk(4, b"e"))
    with pytest.raises(BrokenOutputError):
        await draft.commit(output_of(b"abcd"), is_newest)
    draft.discard()
    assert keys(store) == []


async def test_other_bytes_than_announced_are_not_committed(outputs: Outputs, store: Store) -> None:
    draft = outputs.draft(JOB, 1)
    draft.write(chunk(0, b"abX"))
    with pytest.raises(BrokenOutputError, match="announced"):
        await draft.commit(output_of(b"abc"), is_newest)
    draft.discard()
    assert keys(store) == []


async def test_claims_have_files_of_their_own(outputs: Outputs, store: Store) -> None:
    for counter in (1, 2, 12):
        await write(outputs, b"%d" % counter, counter)
    await outputs.delete(JOB, 1)
    assert not await outputs.exists(JOB, 1)
    assert await read(outputs, b"12", 0, 12) == b"12"
    await write(outputs, b"later", 20)
    await outputs.delete_older(JOB, 12)
    assert not await outputs.exists(JOB, 2)
    assert await outputs.exists(JOB, 12)
    assert await outputs.exists(JOB, 20)
    await outputs.delete(JOB)
    assert keys(store) == []


async def test_of_two_writers_of_one_claim_in_a_bucket_the_later_one_loses(bucket: str) -> None:
    outputs = Outputs(open_store(f"{bucket}/{secrets.token_hex(4)}"))
    await write(outputs, b"first")
    await write(outputs, b"first")
    with pytest.raises(StaleTokenError):
        await write(outputs, b"second")
    assert await read(outputs, b"first", 0) == b"first"


async def test_offsets_outside_of_the_file_and_lost_files_are_errors(outputs: Outputs) -> None:
    with pytest.raises(DataLossError):
        await read(outputs, b"abc", 0)
    await write(outputs, b"abc")
    assert await read(outputs, b"abc", 3) == b""
    for offset in (-1, 4):
        with pytest.raises(OffsetError):
            await read(outputs, b"abc", offset)
    with pytest.raises(DataLossError):
        await read(outputs, b"abcd", 0)


async def test_a_download_goes_on_from_any_offset_in_pieces_that_fit_a_message(outputs: Outputs) -> None:
    data = secrets.token_bytes(BLOCK_BYTES + CHUNK_BYTES + 1)
    await write(outputs, data)
    for offset in (0, 1, CHUNK_BYTES, BLOCK_BYTES - 1, BLOCK_BYTES, len(data) - 1):
        pieces = [piece async for piece in outputs.read(JOB, 1, output_of(data), offset)]
        assert b"".join(piece.data for piece in pieces) == data[offset:]
        assert all(len(piece.data) <= CHUNK_BYTES for piece in pieces)
        assert all(piece.data == data[piece.offset :][: len(piece.data)] for piece in pieces)


@given(st.text(max_size=60))
def test_only_ids_of_ours_become_names(job_id: str) -> None:
    with pytest.raises(UnknownJobError):
        name_of(job_id, 1)


async def test_a_store_keeps_its_id(tmp_path: Path, bucket: str) -> None:
    for here, there in ((str(tmp_path / "a"), str(tmp_path / "b")), (f"{bucket}/a", f"{bucket}/b")):
        first = await Outputs(open_store(here)).open()
        assert await Outputs(open_store(here)).open() == first
        assert await Outputs(open_store(there)).open() != first


async def test_only_old_files_of_ours_are_judged(tmp_path: Path) -> None:
    store = open_store(tmp_path / "outputs")
    outputs = Outputs(store)
    for counter in (1, 2, 3):
        await write(outputs, b"abc", counter)
    store.create("89/mine.txt", b"put here by somebody else")
    long_ago = time.time() - 2 * ORPHAN_AGE_S
    for key in (name_of(JOB, 1), name_of(JOB, 2), "89/mine.txt"):
        os.utime(tmp_path / "outputs" / key, (long_ago, long_ago))
    assert sorted(file for page in outputs.old_files(1) for file in page) == [(JOB, 1), (JOB, 2)]


async def test_a_directory_that_takes_nothing_is_full_until_it_takes_something(tmp_path: Path) -> None:
    folder = tmp_path / "outputs"
    outputs = Outputs(open_store(folder))
    outputs.problem = "no room"
    (folder / ".drafts").rename(folder / ".gone")
    with pytest.raises(DiskFullError):
        await write(outputs, b"abc")
    assert not await outputs.has_room()
    (folder / ".gone").rename(folder / ".drafts")
    assert await outputs.has_room()
    assert keys(open_store(folder)) == []


async def test_a_bucket_that_is_gone_fails_the_commit_and_not_the_deletion() -> None:
    with s3_bucket() as url:
        outputs = Outputs(open_store(url))
        await outputs.open()
    with pytest.raises(OutputsUnavailableError, match="can't be stored"):
        await write(outputs, b"abc")
    with pytest.raises(OutputsUnavailableError, match="can't be read"):
        await read(outputs, b"abc", 0)
    await outputs.delete(JOB)
