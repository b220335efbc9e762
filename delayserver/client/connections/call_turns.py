"""The turns of calls on the connection of a blocking client, and the closing of the client beside them.

Holds a lock, a mark and a count. The connection itself belongs to the client.
"""

from __future__ import annotations

import os
import threading
import time
from typing import Final
from weakref import WeakSet

from delayserver.protocol.errors import ConnectionLost, InvalidArgument

PAUSE_PART_S: Final = 0.05
"""A pause checks this often whether the client was closed. A signal handler closes the client by a plain count, because
it could not set an event on which the interrupted thread waits."""

_all_turns: WeakSet[CallTurns] = WeakSet()


def _renew_all() -> None:
    """Runs in a forked process: the threads that held locks do not exist there."""
    for turns in _all_turns:
        turns.renew()


os.register_at_fork(after_in_child=_renew_all)


class CallTurns:
    """A call holds the ``lock``. ``calling`` says that its request is in progress; a signal handler that interrupts the
    call sees it too, although it gets the lock again. Every close increments ``close_count``: a call that began at another
    count ends.
    """

    __slots__ = ("__weakref__", "_lock", "_made_of", "calling", "close_count")

    def __init__(self) -> None:
        self._made_of = threading.Lock
        self._lock = threading.RLock()
        self.calling = False
        self.close_count = 0
        _all_turns.add(self)

    @property
    def lock(self) -> threading.RLock:
        """The lock of the present kind of threads. gevent replaces threads by greenlets when it patches the program. To a
        lock from before, all greenlets are one thread, which owns it.
        """
        if self._made_of is not threading.Lock:
            self.renew()
        return self._lock

    def renew(self) -> None:
        """Forget the call of a thread that does not exist in this process. Its connection is not used any more."""
        self._made_of = threading.Lock
        self._lock = threading.RLock()
        self.calling = False

    def refuse_inner(self, operation: str) -> None:
        """Raises `InvalidArgument` for a signal handler that has interrupted a call. The caller holds the lock."""
        if self.calling:
            raise InvalidArgument(f"{operation} inside another call: a signal handler needs a client of its own")

    def begin(self) -> None:
        """The request of a call is in progress from now on."""
        self.calling = True

    def end(self) -> None:
        """The request of the call is over."""
        self.calling = False

    def close(self) -> None:
        """End the call in progress. May be called by any thread and by a signal handler, without the lock."""
        self.close_count += 1

    def check(self, close_count: int, cause: BaseException | None = None) -> None:
        """Raises `ConnectionLost` if the client was closed after it had this ``close_count``."""
        if self.close_count != close_count:
            raise ConnectionLost("the client was closed") from cause

    def pause(self, pause_s: float, close_count: int) -> None:
        """Sleep that long, or until the client is closed."""
        until_s = time.monotonic() + pause_s
        while self.close_count == close_count and (remaining_s := until_s - time.monotonic()) > 0:
            time.sleep(min(remaining_s, PAUSE_PART_S))
