"""Worker threads: work that may wait for the disk runs beside the event loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

import trio

T = TypeVar("T")


class Workers(Protocol):
    """Runs blocking work for tasks. A caller decides which work is small enough to do without."""

    async def run(self, work: Callable[[], T], *, abandon_on_cancel: bool = False) -> T:
        """What `work()` returns; raises what it raises. A caller that is cancelled meanwhile waits for the end of the work;
        with `abandon_on_cancel` it goes on at once, and nothing hears of the result."""


class ThreadWorkers:
    """The threads of trio."""

    async def run(self, work: Callable[[], T], *, abandon_on_cancel: bool = False) -> T:
        return await trio.to_thread.run_sync(work, abandon_on_cancel=abandon_on_cancel)
