"""Files: whole or not there, and never under a name that a caller chose."""

from __future__ import annotations

import hashlib
import os
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from darkroom.rpc.errors import BrokenOutputError, DataLossError, OffsetError, UnknownJobError
from darkroom.v1 import generation_pb2, worker_pb2
from services.gateway.outputs import ORPHAN_AGE_S, Outputs

JOB = "0123456789ab" * 2


def output_of(data: bytes) -> generation_pb2.Output:
    return generation_pb2.Output(size_bytes=len(data), sha256=hashlib.sha256(data).hexdigest())


def chunk(offset: int, data: bytes) -> worker_pb2.OutputChunk:
    return worker_pb2.OutputChunk(offset=offset, data=data)


@pytest.fixture
def outputs(tmp_path: Path) -> Outputs:
    store = Outputs(tmp_path / "outputs")
    store.open()
    return store


async def read(outputs: Outputs, data: bytes, offset: int) -> bytes:
    return b"".join([piece.data async for piece in outputs.read(JOB, 1, output_of(data), offset)])


async def test_a_file_is_not_there_before_it_is_whole(outputs: Outputs) -> None:
    draft = outputs.draft(JOB, 1)
    draft.write(chunk(0, b"abc"))
    assert not outputs.path(JOB, 1).exists()
    draft.write(chunk(3, b"def"))
    await draft.commit(output_of(b"abcdef"))
    draft.discard()
    assert outputs.path(JOB, 1).read_bytes() == b"abcdef"
    assert await read(outputs, b"abcdef", 0) == b"abcdef"


async def test_replayed_pieces_are_skipped_and_missing_ones_are_noticed(outputs: Outputs) -> None:
    draft = outputs.draft(JOB, 1)
    draft.write(chunk(0, b"abc"))
    draft.write(chunk(0, b"abc"))
    with pytest.raises(BrokenOutputError):
        draft.write(chunk(4, b"e"))
    with pytest.raises(BrokenOutputError):
        await draft.commit(output_of(b"abcd"))
    draft.discard()
    assert not outputs.path(JOB, 1).exists()


async def test_other_bytes_than_announced_are_not_committed(outputs: Outputs) -> None:
    draft = outputs.draft(JOB, 1)
    draft.write(chunk(0, b"abX"))
    with pytest.raises(BrokenOutputError, match="announced"):
        await draft.commit(output_of(b"abc"))
    draft.discard()


async def test_claims_have_files_of_their_own(outputs: Outputs) -> None:
    for counter, data in ((1, b"old"), (2, b"new")):
        draft = outputs.draft(JOB, counter)
        draft.write(chunk(0, data))
        await draft.commit(output_of(data))
    outputs.delete(JOB, 1)
    assert outputs.path(JOB, 2).read_bytes() == b"new"
    outputs.delete(JOB)
    assert not outputs.path(JOB, 2).exists()


async def test_offsets_outside_of_the_file_and_lost_files_are_errors(outputs: Outputs) -> None:
    with pytest.raises(DataLossError):
        await read(outputs, b"abc", 0)
    draft = outputs.draft(JOB, 1)
    draft.write(chunk(0, b"abc"))
    await draft.commit(output_of(b"abc"))
    assert await read(outputs, b"abc", 3) == b""
    for offset in (-1, 4):
        with pytest.raises(OffsetError):
            await read(outputs, b"abc", offset)
    with pytest.raises(DataLossError):
        await read(outputs, b"abcd", 0)


@given(st.text(max_size=60))
def test_only_ids_of_ours_become_paths(job_id: str) -> None:
    with pytest.raises(UnknownJobError):
        Outputs(Path("/nonexistent")).path(job_id, 1)


def test_a_folder_keeps_its_name(tmp_path: Path) -> None:
    assert Outputs(tmp_path / "a").open() == Outputs(tmp_path / "a").open() != Outputs(tmp_path / "b").open()


async def test_only_old_files_of_ours_are_judged_and_only_old_drafts_are_dropped(
    outputs: Outputs, tmp_path: Path
) -> None:
    for counter in (1, 2, 3):
        draft = outputs.draft(JOB, counter)
        draft.write(chunk(0, b"abc"))
        await draft.commit(output_of(b"abc"))
    folder = outputs.path(JOB, 1).parent
    (folder / "mine.txt").write_text("put here by somebody else")
    unfinished = tmp_path / "outputs" / "unfinished"
    for name in ("old", "young"):
        (unfinished / name).write_text("half")
    long_ago = time.time() - 2 * ORPHAN_AGE_S
    for path in (outputs.path(JOB, 1), outputs.path(JOB, 2), folder / "mine.txt", unfinished / "old"):
        os.utime(path, (long_ago, long_ago))
    assert sorted(file for page in outputs.old_files(1) for file in page) == [(JOB, 1), (JOB, 2)]
    assert outputs.drop_leftovers() == 1
    assert [path.name for path in unfinished.iterdir()] == ["young"]
