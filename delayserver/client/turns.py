"""Whose turn it is on the connection of a blocking client: one call at a time, and beside them whoever closes the client.

Only a lock and two marks; the connection itself is the client's.
"""

from __future__ import annotations

import os
import threading
import time
from typing import Final
from weakref import WeakSet

from delayserver.protocol.errors import ConnectionLost

PAUSE_PART_S: Final = 0.05
"""After this long a pause looks whether the client was closed. An event could not be set by a signal handler that interrupts
who waits for it."""

_all_turns: WeakSet[Turns] = WeakSet()


def _renew() -> None:
    """In a process that was forked: whoever held a lock does not run here. Their connections are not used any more."""
    for turns in _all_turns:
        turns.lock = threading.RLock()
        turns.calling = False


os.register_at_fork(after_in_child=_renew)


class Turns:
    """``lock`` is held by a call and what belongs to it; ``calling`` says that its request is under way, also to a signal
    handler that interrupts it and gets the lock again. ``close_count`` goes up with every close: a call that began at
    another count ends.
    """

    __slots__ = ("__weakref__", "calling", "close_count", "lock")

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.calling = False
        self.close_count = 0
        _all_turns.add(self)

    def check(self, close_count: int, cause: BaseException | None = None) -> None:
        """Raises `ConnectionLost` where the client was closed since then."""
        if self.close_count != close_count:
            raise ConnectionLost("the client was closed") from cause

    def pause(self, pause_s: float, close_count: int) -> None:
        """Sleep that long, or until the client is closed."""
        until_s = time.monotonic() + pause_s
        while self.close_count == close_count and (remaining_s := until_s - time.monotonic()) > 0:
            time.sleep(min(remaining_s, PAUSE_PART_S))
