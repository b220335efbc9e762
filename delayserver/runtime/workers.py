"""Worker threads: work that may wait for the disk runs beside the event loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

import trio

T = TypeVar("T")


class Workers(Protocol):
    """Runs blocking work for tasks. The caller decides which work is small enough for the event loop."""

    async def run(self, work: Callable[[], T], *, abandon_on_cancel: bool = False) -> T:
        """Run `work()` in a thread; returns its result or raises its error.

        A cancelled caller waits for the end of the work. With `abandon_on_cancel` it goes on at once, and the result is
        lost."""


class ThreadWorkers:
    """`Workers` on trio's threads."""

    async def run(self, work: Callable[[], T], *, abandon_on_cancel: bool = False) -> T:
        return await trio.to_thread.run_sync(work, abandon_on_cancel=abandon_on_cancel)
