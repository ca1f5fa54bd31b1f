"""What a load or an item says while it goes on, and how it learns that it should stop.

Shared by all engines; knows nothing of sockets. Invariant: a finished item is told with its size before its bytes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from darkroom.rpc.errors import CancelledError, DarkroomError, error_to_message
from darkroom.v1 import engine_pb2, error_pb2, generation_pb2, worker_pb2

# Pieces of a file, as the public contract says.
CHUNK_BYTES = 256 * 1024


class Reporter:
    """What a load or an item says while it goes on. `check` raises once somebody asked it to stop.

    Args:
        send: takes an event of the command under way.
        is_cancelled: tells that the command or the item was cancelled.
    """

    def __init__(self, send: Callable[[engine_pb2.EngineEvent], None], is_cancelled: Callable[[], bool]) -> None:
        self._send = send
        self._is_cancelled = is_cancelled

    def check(self) -> None:
        """Raises CancelledError if the work was cancelled: call it at every boundary."""
        if self._is_cancelled():
            raise CancelledError("cancelled at the next boundary, as asked")


class LoadReporter(Reporter):
    """Reports of a load."""

    def progress(self, progress: generation_pb2.Progress) -> None:
        """The load went on."""
        self._send(engine_pb2.EngineEvent(load=worker_pb2.LoadEvent(progress=progress)))

    def fallback(self, trigger: int, error: DarkroomError) -> None:
        """The plan failed and its fallback goes on."""
        taken = worker_pb2.FallbackTaken(trigger=trigger, error=error_to_message(error))  # type: ignore[arg-type]
        self._send(engine_pb2.EngineEvent(load=worker_pb2.LoadEvent(fallback=taken)))


class ItemReporter(Reporter):
    """Reports of one item of a run."""

    def __init__(
        self, job_id: str, send: Callable[[engine_pb2.EngineEvent], None], is_cancelled: Callable[[], bool]
    ) -> None:
        super().__init__(send, is_cancelled)
        self._job_id = job_id
        self._began_at = time.monotonic()
        # With how many others the item is made; absent for an item alone in its run.
        self.batch: generation_pb2.Engagement | None = None
        # True once the item is finished or has failed.
        self.is_over = False

    def begin(self) -> None:
        """The item's own time begins."""
        self._began_at = time.monotonic()

    def heed_cancel(self) -> bool:
        """Ends the item if it was asked to stop; returns True if it is over."""
        if not self.is_over and self._is_cancelled():
            self.fail(error_to_message(CancelledError("cancelled at the next boundary, as asked")))
        return self.is_over

    @property
    def elapsed_s(self) -> float:
        """Seconds since the item began."""
        return time.monotonic() - self._began_at

    def progress(self, progress: generation_pb2.Progress) -> None:
        """The item went on."""
        self._item(worker_pb2.RunEvent(progress=progress))

    def finish(self, output: generation_pb2.Output, data: bytes) -> None:
        """The item is finished: its description, then its file in pieces."""
        output.engine_time.FromNanoseconds(int(self.elapsed_s * 1e9))
        if self.batch is not None:
            output.engagements.append(self.batch)
        self._item(worker_pb2.RunEvent(output=output))
        for offset in range(0, len(data), CHUNK_BYTES):
            chunk = worker_pb2.OutputChunk(offset=offset, data=data[offset : offset + CHUNK_BYTES])
            self._item(worker_pb2.RunEvent(chunk=chunk))
        self.is_over = True

    def fail(self, error: error_pb2.Error) -> None:
        """The item failed."""
        self.is_over = True
        self._item(worker_pb2.RunEvent(error=error))

    def _item(self, event: worker_pb2.RunEvent) -> None:
        event.job_id = self._job_id
        self._send(engine_pb2.EngineEvent(run=event))


def heed_cancels(reports: Sequence[ItemReporter]) -> None:
    """Call it at every boundary of a call: ends the items that were asked to stop.

    Raises:
        CancelledError: no item of the call is left.
    """
    for report in reports:
        report.heed_cancel()
    if all(report.is_over for report in reports):
        raise CancelledError("cancelled at the next boundary, as asked")
