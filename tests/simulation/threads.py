"""Worker threads of the simulation: no threads. The work is done in one step, a random while later, on the event loop. The
bounds of work, which say among others what leaves the loop, are drawn here too.

So the paths that leave the event loop interleave with everything else, which is where mistakes hide, and a seed still
repeats exactly. What happens inside one piece of work is not interleaved: that would need real threads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from random import Random
from typing import TypeVar

from delayserver.broker.service import pulls
from delayserver.dispatch import broker_group, complete_windows, dispatcher, message_reader
from delayserver.operations.groups import consuming, redelivery
from delayserver.operations.messages import cancellation
from delayserver.replay import day_drain, day_sealing, replayer
from delayserver.runtime import disk_pace
from delayserver.runtime.watchdog import Watchdog
from delayserver.state.decisions import decided, open_messages
from store.logs import window_files
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
    (day_drain, "DRAIN_ROWS", 3),
    # Then days with more messages than this are split into minutes, also where all of it is overdue.
    (day_sealing, "WHOLE_ROWS_MAX", 2),
    (replayer, "ROUND_ROWS_MAX", 5),
    (complete_windows, "WINDOWS_AT_ONCE", 2),
    (redelivery, "EXPIRED_AT_ONCE", 2),
    (consuming, "LARGE_ROWS", 2),
    (broker_group, "LARGE_ROWS", 2),
    (message_reader, "LARGE_ROWS", 1),
    # What counts as a hot moment: a few messages that are due in the same second.
    (message_reader, "HOT_ROWS_MIN", 2),
    (message_reader, "HOT_ROWS_A_MS", 0),
    (dispatcher, "LARGE_ROWS", 2),
    (decided, "HOT_ROWS", 2),
    (pulls, "LARGE_ROWS", 2),
    (window_files, "CREATED_AT_ONCE", 1),
)
# What all seeds have instead: memory that is made anew for each life, and of which some hundred messages use little.
_SIZES = ((open_messages, "ROWS_MAX", 1 << 12),)
# And no watchdog: time stands still in each step, and between steps it jumps. So it would call each jump a stall.
_UNWATCHED = ((Watchdog, "watching", lambda _self: nullcontext()),)
_INSTEAD: tuple[tuple[object, str, object], ...] = (*_SIZES, *_UNWATCHED)


class SimulatedWorkers:
    """The `Workers` of one host."""

    def __init__(self, chance: Random, time: SimulatedTime) -> None:
        self._chance = chance
        self._time = time

    async def run(self, work: Callable[[], T], *, abandon_on_cancel: bool = False) -> T:
        # Threads are not given up when their caller is cancelled, so this is not either; nor is a start that is stopped.
        chance, time = self._chance, self._time
        await time.sleep_through(chance.choice([0.0, 0.0005, 0.02]) * chance.random())
        result = work()
        await time.sleep_through(chance.choice([0.0, 0.0005]) * chance.random())
        return result


@contextmanager
def drawn_bounds(chance: Random) -> Iterator[None]:
    """Draw the bounds of work while a seed runs."""
    before = [(place, name, getattr(place, name)) for place, name, _ in (*_THRESHOLDS, *_INSTEAD)]
    for module, name, small in _THRESHOLDS:
        setattr(module, name, chance.choice([small, getattr(module, name)]))
    for place, name, instead in _INSTEAD:
        setattr(place, name, instead)
    try:
        yield
    finally:
        for place, name, value in before:
            setattr(place, name, value)
