"""Progress on its way to the store: bursts in one write, in order, once, and nothing lost at the end."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from darkroom.rpc.errors import StaleTokenError
from darkroom.v1 import generation_pb2
from services.gateway.running.journal import Journal
from services.gateway.store.driving import Entry

FAR_S = 60.0


class Book:
    """What was written, write by write. A write lasts until `release` is set."""

    def __init__(self) -> None:
        self.writes: list[list[int]] = []
        self.release = asyncio.Event()
        self.release.set()

    async def write(self, entries: Sequence[Entry]) -> None:
        await self.release.wait()
        self.writes.append([sequence for sequence, _ in entries])


def add(journal: Journal, *sequences: int) -> None:
    for sequence in sequences:
        journal.add(sequence, generation_pb2.Progress())


async def test_a_burst_that_arrives_message_by_message_is_one_write() -> None:
    book = Book()
    journal = Journal(book.write, gather_s=0.05)
    for sequence in range(1, 5):
        add(journal, sequence)
        await asyncio.sleep(0)
    await asyncio.sleep(0.3)
    assert book.writes == [[1, 2, 3, 4]]


async def test_a_flush_waits_for_nobody_else() -> None:
    book = Book()
    journal = Journal(book.write, FAR_S)
    add(journal, 1, 2)
    async with asyncio.timeout(5):
        await journal.flush()
    add(journal, 3)
    async with asyncio.timeout(5):
        await journal.flush()
    assert book.writes == [[1, 2], [3]]


async def test_what_comes_while_one_write_is_under_way_goes_with_the_next() -> None:
    book = Book()
    book.release.clear()
    journal = Journal(book.write, gather_s=0)
    add(journal, 1)
    await asyncio.sleep(0.05)
    add(journal, 2, 3)
    book.release.set()
    await journal.flush()
    assert book.writes == [[1], [2, 3]]


async def test_what_is_taken_is_written_by_nobody_else() -> None:
    book = Book()
    book.release.clear()
    journal = Journal(book.write, gather_s=0)
    add(journal, 1)
    await asyncio.sleep(0.05)
    add(journal, 2, 3)
    taking = asyncio.create_task(journal.take())
    await asyncio.sleep(0.05)
    book.release.set()
    assert [sequence for sequence, _ in await taking] == [2, 3]
    await journal.close()
    assert book.writes == [[1]]


async def test_what_a_write_failed_with_is_told_to_whoever_takes_the_rest() -> None:
    async def refuse(entries: Sequence[Entry]) -> None:
        raise StaleTokenError("a newer claim")

    journal = Journal(refuse, gather_s=0)
    add(journal, 1)
    await asyncio.sleep(0.05)
    with pytest.raises(StaleTokenError):
        await journal.take()
    await journal.close()
