"""Builds that this builder knows: their state, who watches them, and which request asked for them.

Knows nothing of how a build is made. Invariants: a terminal build never changes; a watcher sees the current state first
and the terminal one last.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncGenerator

from darkroom.rpc.errors import RequestIdReusedError, UnknownBuildError
from darkroom.v1 import build_pb2

QUEUED, RUNNING = build_pb2.BUILD_STATE_QUEUED, build_pb2.BUILD_STATE_RUNNING
TERMINAL = frozenset({build_pb2.BUILD_STATE_SUCCEEDED, build_pb2.BUILD_STATE_FAILED, build_pb2.BUILD_STATE_CANCELLED})
# Ended builds that are kept; the oldest go first.
MOST_ENDED = 500


class Record:
    """One build."""

    def __init__(self, order: build_pb2.BuildOrder, components: list[str]) -> None:
        now_ns = time.time_ns()
        self.build = build_pb2.Build(
            id=f"{now_ns // 1_000_000:012x}{secrets.token_hex(4)}", state=QUEUED, order=order, components=components
        )
        self.build.created_at.FromNanoseconds(now_ns)
        self._changed = asyncio.Event()

    @property
    def has_ended(self) -> bool:
        """True once nothing changes any more."""
        return self.build.state in TERMINAL

    def merge(self, news: build_pb2.Build) -> None:
        """Takes over what the making process told."""
        for field, value in news.ListFields():
            if field.name in ("progress", "peak"):
                getattr(self.build, field.name).CopyFrom(value)
            elif field.name == "device":
                self.build.device = value
        self.touch()

    def end(self, state: build_pb2.BuildState.ValueType) -> None:
        """Enters a terminal state."""
        self.build.state = state
        self.build.finished_at.GetCurrentTime()
        self.touch()

    def touch(self) -> None:
        """Wakes the watchers."""
        self._changed.set()
        self._changed = asyncio.Event()

    def copy(self) -> build_pb2.Build:
        """Returns the state as it is now."""
        copied = build_pb2.Build()
        copied.CopyFrom(self.build)
        return copied

    async def watch(self) -> AsyncGenerator[build_pb2.Build, None]:
        """Yields the state now, and after every change, up to the terminal one."""
        while True:
            changed = self._changed
            has_ended = self.has_ended
            yield self.copy()
            if has_ended:
                return
            await changed.wait()


class Records:
    """All builds, by id; ids sort by time."""

    def __init__(self) -> None:
        self._records: dict[str, Record] = {}
        # By request id: the order as bytes, and the build.
        self._requests: dict[str, tuple[bytes, str]] = {}

    def find_request(self, request_id: str, order: build_pb2.BuildOrder) -> Record | None:
        """Returns the build that a request id stands for.

        Raises:
            RequestIdReusedError: it stands for another order.
        """
        known = self._requests.get(request_id) if request_id else None
        if known is None or known[1] not in self._records:
            return None
        if known[0] != order.SerializeToString(deterministic=True):
            raise RequestIdReusedError(f"request_id {request_id} was sent with another order", request_id=request_id)
        return self._records[known[1]]

    def add(self, record: Record, request_id: str, asked: build_pb2.BuildOrder) -> None:
        """Keeps a build."""
        self._records[record.build.id] = record
        if request_id:
            self._requests[request_id] = (asked.SerializeToString(deterministic=True), record.build.id)
        ended = [item for item in self._records.values() if item.has_ended]
        for old in ended[: max(0, len(ended) - MOST_ENDED)]:
            del self._records[old.build.id]
        self._requests = {key: value for key, value in self._requests.items() if value[1] in self._records}

    def get(self, build_id: str) -> Record:
        """Returns a build. Raises UnknownBuildError."""
        record = self._records.get(build_id)
        if record is None:
            text = f"no build is {build_id[:64]!r}; builds are kept while the builder runs"
            raise UnknownBuildError(text, build_id=build_id[:64])
        return record

    def newest(self) -> list[build_pb2.Build]:
        """Returns all builds, newest first."""
        return [
            record.copy() for record in sorted(self._records.values(), key=lambda item: item.build.id, reverse=True)
        ]
