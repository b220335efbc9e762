"""Worker threads of the simulation: no threads. The work is done in one step, a random while later, on the event loop.

So the paths that leave the event loop interleave with everything else, which is where mistakes hide, and a seed still
repeats exactly. What happens inside one piece of work is not interleaved: that would need real threads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random
from typing import Any, TypeVar

import trio

from delayserver import broker_group, cancellation, group_commit, replayer
from tests.simulation.clocks import SimulatedTime

T = TypeVar("T")
# Thresholds below which work stays on the event loop; lowered, so that the small batches of a seed leave it too.
_THRESHOLDS = (
    (replayer, "INLINE_ROWS_MAX"),
    (broker_group, "INLINE_READ_BYTES_MAX"),
    (cancellation, "INLINE_MESSAGES_MAX"),
    (group_commit, "INLINE_SYNC_US_MAX"),
)


@contextmanager
def simulated_threads(chance: Random, time: SimulatedTime) -> Iterator[None]:
    """Replace `trio.to_thread.run_sync` while a seed runs."""

    async def run_sync(work: Callable[..., T], *arguments: Any, **_options: Any) -> T:
        # trio does not give up a thread when its caller is cancelled, so neither does this.
        await time.sleep_through(chance.choice([0.0, 0.0005, 0.02]) * chance.random())
        result = work(*arguments)
        await time.sleep_through(chance.choice([0.0, 0.0005]) * chance.random())
        return result

    real = trio.to_thread.run_sync
    thresholds = [(module, name, getattr(module, name)) for module, name in _THRESHOLDS]
    trio.to_thread.run_sync = run_sync  # type: ignore[assignment]
    for module, name, value in thresholds:
        setattr(module, name, chance.choice([0, value]))
    try:
        yield
    finally:
        trio.to_thread.run_sync = real
        for module, name, value in thresholds:
            setattr(module, name, value)
