"""Worker threads of the simulation: no threads. The work is done in one step, a random while later, on the event loop. The
bounds of work, which say among others what leaves the loop, are drawn here too.

So the paths that leave the event loop interleave with everything else, which is where mistakes hide, and a seed still
repeats exactly. What happens inside one piece of work is not interleaved: that would need real threads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random
from typing import Any, TypeVar

import trio

from delayserver import (
    broker_group,
    broker_service,
    cancellation,
    day_tier,
    disk_pace,
    dispatcher,
    housekeeping,
    message_reader,
    outcome_recorder,
    replayer,
)
from delayserver.broker import pulls
from store import window_files
from tests.simulation.clocks import SimulatedTime

T = TypeVar("T")
# Bounds of work, and what half of the seeds have instead. First those below which work stays on the event loop; lowered, so
# that the small batches of a seed leave it too.
_THRESHOLDS = (
    (replayer, "INLINE_ROWS_MAX", 0),
    (message_reader, "INLINE_READ_BYTES_MAX", 0),
    (cancellation, "INLINE_MESSAGES_MAX", 0),
    (disk_pace, "INLINE_SYNC_US_MAX", 0),
    # Slices of work between which others have their turn.
    (day_tier, "DRAIN_ROWS", 3),
    (replayer, "ROUND_ROWS_MAX", 5),
    (housekeeping, "WINDOWS_AT_ONCE", 2),
    (broker_service, "EXPIRED_AT_ONCE", 2),
    (broker_service, "LARGE_ROWS", 2),
    (broker_group, "LARGE_ROWS", 2),
    (message_reader, "LARGE_ROWS", 1),
    # What counts as a hot moment: a few messages that are due in the same second.
    (message_reader, "HOT_ROWS_MIN", 2),
    (message_reader, "HOT_ROWS_A_MS", 0),
    (dispatcher, "LARGE_ROWS", 2),
    (outcome_recorder, "HOT_ROWS", 2),
    (pulls, "LARGE_ROWS", 2),
    (window_files, "CREATED_AT_ONCE", 1),
)


@contextmanager
def simulated_threads(chance: Random, time: SimulatedTime) -> Iterator[None]:
    """Replace `trio.to_thread.run_sync` and draw the bounds of work while a seed runs."""

    async def run_sync(work: Callable[..., T], *arguments: Any, **_options: Any) -> T:
        # trio does not give up a thread when its caller is cancelled, so neither does this.
        await time.sleep_through(chance.choice([0.0, 0.0005, 0.02]) * chance.random())
        result = work(*arguments)
        await time.sleep_through(chance.choice([0.0, 0.0005]) * chance.random())
        return result

    real = trio.to_thread.run_sync
    thresholds = [(module, name, getattr(module, name), small) for module, name, small in _THRESHOLDS]
    trio.to_thread.run_sync = run_sync  # type: ignore[assignment]
    for module, name, value, small in thresholds:
        setattr(module, name, chance.choice([small, value]))
    try:
        yield
    finally:
        trio.to_thread.run_sync = real
        for module, name, value, _ in thresholds:
            setattr(module, name, value)
