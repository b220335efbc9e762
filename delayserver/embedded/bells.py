"""Bells: how a task of an event loop and a thread wait for something that any thread may announce."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress

import anyio
import sniffio
import trio


class TaskBell:
    """For one waiting task, on trio or asyncio. A ring without a waiter is kept for the next wait."""

    __slots__ = ("_rung", "_thread", "_waiting", "_wake")

    def __init__(self) -> None:
        self._rung = False
        self._waiting: anyio.Event | None = None
        self._wake: Callable[[Callable[[], object]], object] | None = None
        self._thread = 0

    def ring(self) -> None:
        """Wake the task. From any thread."""
        self._rung = True
        waiting, wake = self._waiting, self._wake
        if waiting is None or wake is None:
            return
        if self._thread == threading.get_ident():
            waiting.set()
            return
        # A loop that has ended has no task that waits.
        with suppress(RuntimeError, trio.RunFinishedError):
            wake(waiting.set)

    async def wait(self) -> None:
        """Return when it was rung since the last wait."""
        if self._wake is None:
            self._wake, self._thread = _waker(), threading.get_ident()
        if not self._rung:
            self._waiting = anyio.Event()
            try:
                # A ring before this line did not see the event, and one after it does.
                if not self._rung:
                    await self._waiting.wait()
            finally:
                self._waiting = None
        self._rung = False


def _waker() -> Callable[[Callable[[], object]], object]:
    """A function that another thread calls to have something run in the loop of this task."""
    if sniffio.current_async_library() == "trio":
        return trio.lowlevel.current_trio_token().run_sync_soon
    import asyncio

    return asyncio.get_running_loop().call_soon_threadsafe


class ThreadBell:
    """For one waiting thread. A bare lock: a signal handler may ring it while its thread waits."""

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def ring(self) -> None:
        """Wake the thread. From any thread."""
        with suppress(RuntimeError):  # it rings already
            self._lock.release()

    def wait(self, timeout_s: float) -> None:
        """Return when it was rung since the last wait, or after the time."""
        self._lock.acquire(timeout=timeout_s)
