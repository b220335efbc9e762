"""Reads a shared log for a while, beside something else."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import trio

from delayserver.runtime.shared_log import LogRecord, SharedLog, SharedLogError


@asynccontextmanager
async def reading(log: SharedLog, start: int, arrived: Callable[[Sequence[LogRecord]], None]) -> AsyncIterator[None]:
    """Read for the block, from `start` on, and append what the block hands over. The block ends early where the log fails.
    Raises LogLost, LogUnusable, AppendFailed, and what SharedLogError `arrived` or the block raises, as they are."""
    failure: SharedLogError | None = None

    async def follow(scope: trio.CancelScope) -> None:
        nonlocal failure
        try:
            await log.run(start, arrived)
        except SharedLogError as error:
            failure = error
            scope.cancel()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(follow, nursery.cancel_scope)
        try:
            yield
        except SharedLogError as error:
            failure = failure or error
        nursery.cancel_scope.cancel()
    if failure is not None:
        raise failure
