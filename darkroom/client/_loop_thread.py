"""A thread with an event loop, shared by all blocking clients of this process.

One thread for all, because gRPC's asyncio layer dislikes several loops in one process. Knows nothing of gRPC.
Invariant: `run` returns only when its coroutine has ended, whatever interrupts the caller.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import os
import threading
from collections.abc import AsyncGenerator, Coroutine, Generator
from typing import Any, TypeVar

T = TypeVar("T")
# How long an interrupted call may take to clean up, a cancelled job included.
CLEAN_UP_S = 5.0


class _Loop:
    """A running loop, on a thread that ends when the last user leaves."""

    def __init__(self) -> None:
        self.process_id = os.getpid()
        self.num_users = 0
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self._serve, name="darkroom-client", daemon=True)
        self.thread.start()

    def _serve(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()
        self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        self.loop.close()

    def stop(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        if threading.current_thread() is not self.thread:
            self.thread.join(CLEAN_UP_S)


_lock = threading.Lock()  # protects _shared and every num_users
_shared: _Loop | None = None


class LoopThread:
    """One client's share of the thread, taken at its first call."""

    def __init__(self) -> None:
        self._loop: _Loop | None = None

    @property
    def is_open(self) -> bool:
        """True between the first call and `close`."""
        return self._loop is not None

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Runs the coroutine on the thread and returns what it returns or raises what it raises.

        An interrupt (KeyboardInterrupt, or whatever a signal handler raises) cancels the coroutine, waits for it to
        clean up, and goes on.
        """
        loop = self._acquire()
        if threading.current_thread() is loop.thread:
            coroutine.close()
            raise RuntimeError("a callback of the blocking client can't call it; use AsyncClient for that")
        ended: concurrent.futures.Future[T] = concurrent.futures.Future()
        tasks: list[asyncio.Task[None]] = []
        loop.loop.call_soon_threadsafe(lambda: tasks.append(_start(coroutine, ended)))
        try:
            return ended.result()
        except BaseException:
            if not ended.done():
                loop.loop.call_soon_threadsafe(lambda: tasks[0].cancel())
                concurrent.futures.wait([ended], CLEAN_UP_S)
            raise

    def iterate(self, events: AsyncGenerator[T, None]) -> Generator[T, None, None]:
        """Yields what the asynchronous generator yields, and closes it when the caller leaves."""
        try:
            while True:
                try:
                    event = self.run(_next(events))
                except _Ended:
                    return
                yield event
        finally:
            self.run(_close(events))

    def close(self) -> None:
        """Gives the share back; the last one stops the thread."""
        global _shared
        with _lock:
            loop, self._loop = self._loop, None
            if loop is None:
                return
            loop.num_users -= 1
            if loop.num_users or loop.process_id != os.getpid():
                return
            if _shared is loop:
                _shared = None
        loop.stop()

    def _acquire(self) -> _Loop:
        """A forked child has no thread: it takes a loop of its own, and its parent's channel is of no use to it."""
        global _shared
        with _lock:
            if self._loop is not None and self._loop.process_id == os.getpid():
                return self._loop
            if self._loop is not None:
                raise RuntimeError("this client was made before a fork; make a new one in the child")
            if _shared is None or _shared.process_id != os.getpid():
                _shared = _Loop()
            _shared.num_users += 1
            self._loop = _shared
            return self._loop


class _Ended(Exception):  # noqa: N818 - a signal, not an error: StopAsyncIteration can't cross a future
    """The generator has nothing more to yield."""


def _start(coroutine: Coroutine[Any, Any, T], ended: concurrent.futures.Future[T]) -> asyncio.Task[None]:
    task = asyncio.get_running_loop().create_task(_settle(coroutine, ended))

    def release(_: asyncio.Task[None]) -> None:
        """A task that was cancelled before its first step has handed nothing over."""
        coroutine.close()
        if not ended.done():
            ended.set_exception(concurrent.futures.CancelledError())

    task.add_done_callback(release)
    return task


async def _settle(coroutine: Coroutine[Any, Any, T], ended: concurrent.futures.Future[T]) -> None:
    """Hands the coroutine's end over to the waiting thread."""
    try:
        value = await coroutine
    except asyncio.CancelledError as cancelled:
        ended.set_exception(concurrent.futures.CancelledError(*cancelled.args))
    except BaseException as error:  # the job boundary of this thread: whoever waits gets it
        ended.set_exception(error)
    else:
        ended.set_result(value)


async def _next(events: AsyncGenerator[T, None]) -> T:
    try:
        return await anext(events)
    except StopAsyncIteration:
        raise _Ended from None


async def _close(events: AsyncGenerator[Any, None]) -> None:
    with contextlib.suppress(RuntimeError):
        await events.aclose()
