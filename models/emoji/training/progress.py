"""Progress bars for the training commands, one look everywhere (rich).

Does not know what is counted. Invariant: only rank 0 of a distributed run draws.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import TypeVar

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

T = TypeVar("T")


def is_first_rank() -> bool:
    """Whether this process is the one that prints and writes (torchrun sets RANK)."""
    return int(os.environ.get("RANK", "0")) == 0


def bar() -> Progress:
    """A progress bar with a free text column, to be used as a context manager."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
        disable=not is_first_rank(),
    )


def track(items: Iterable[T], description: str) -> Iterator[T]:
    """Yield `items` while a bar shows how far along we are."""
    listed = list(items)
    with bar() as progress:
        task = progress.add_task(description, total=len(listed), note="")
        for item in listed:
            yield item
            progress.advance(task)
