"""The gate before every call that changes a file: one thread closes it to look at a disk that stands still.

It is neither a disk nor a policy. A disk enters it around each change; reads and syncs change nothing and do not.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Lock, get_ident

# A change that is under way takes microseconds, on a busy disk some milliseconds.
LOOK_AGAIN_S = 0.0002
# While one change takes long, the others go on: the gate opens again between two looks, for up to five seconds of looks. A
# change that takes longer holds all others up, and the event loop may be one of them.
POLITE_LOOKS = 25_000


class WriteGate:
    """Open most of the time: then `enter` and `leave` cost a tenth of a microsecond each and take no lock."""

    __slots__ = ("_closed_by", "_closing", "_inside", "_opened", "_polite_looks")

    def __init__(self, polite_looks: int = POLITE_LOOKS) -> None:
        """`polite_looks`: so many times it does not hold others up for a change that takes long."""
        self._polite_looks = polite_looks
        # One entry for each change under way. Adding and removing one is atomic.
        self._inside: list[None] = []
        # The thread that has closed the gate; 0: it is open.
        self._closed_by = 0
        self._opened = Event()
        self._closing = Lock()

    def enter(self) -> None:
        """Before a change. Waits while another thread keeps the gate closed."""
        # First the entry, then the look: whoever closes the gate does it the other way around, so one sees the other.
        self._inside.append(None)
        while self._closed_by and self._closed_by != get_ident():
            self._inside.pop()
            self._opened.wait()
            self._inside.append(None)

    def leave(self) -> None:
        """After a change, also one that failed."""
        self._inside.pop()

    @contextmanager
    def closed(self) -> Iterator[None]:
        """Within it no other thread changes a file. Begins when the changes under way have ended. The thread itself may
        change files."""
        with self._closing:
            polite = self._polite_looks
            self._shut()
            try:
                while self._inside:
                    if polite:
                        polite -= 1
                        self._open()
                    time.sleep(LOOK_AGAIN_S)
                    self._shut()
                yield
            finally:
                self._open()

    def _shut(self) -> None:
        self._opened.clear()
        self._closed_by = get_ident()

    def _open(self) -> None:
        self._closed_by = 0
        self._opened.set()
